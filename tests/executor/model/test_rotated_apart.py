"""Architectures whose queries and keys go through more than the kernels that rotate and append do, whose embeddings depend on
the position, or whose attention is not multiplied as it is, are exact by rows as they are token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from executor.device import Device
from executor.model.generation import LanguageModel
from executor.model.step import Row
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

SIZES: Final[dict[str, Any]] = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ff": 64, "context": 32}
TOKENS: Final = (3, 17, 101, 44, 9, 55)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["mistral3", "hunyuan-dense", "stablelm", "olmo", "gpt2", "muse-glimmer", "bitnet"])
def test_rows_and_single_tokens_are_exact(arch: str, tmp_path: Path, device: Device) -> None:
    """mistral3 scales queries by their position, from the fourth on; hunyuan-dense normalises heads after the rotation,
    stablelm each with weights of its own; olmo clamps queries, keys and values; gpt2 has learned positions;
    muse-glimmer gates what queries attend to, and bitnet normalises it."""
    path = write_model(tmp_path / "m.gguf", arch, Q.F16, full=True, **SIZES)
    exact = ReferenceModel(path, context=32).logits(TOKENS)
    with LanguageModel.load(path, device, context=32) as model:
        alone = model.logits(TOKENS)
        engine = model.engine(slots=2)
        for slot in range(2):
            engine.set_table(slot, [slot])
        rows = [Row(0, token, position, True) for position, token in enumerate(TOKENS)]
        scores = engine.step([*rows, Row(1, TOKENS[0], 0, True)])
        together = np.array([scores.logits(row) for row in range(len(TOKENS) + 1)])
    assert np.abs(alone - exact).max() < 1e-5 * exact.std()
    assert np.abs(together - np.concatenate([exact, exact[:1]])).max() < 1e-5 * exact.std()
