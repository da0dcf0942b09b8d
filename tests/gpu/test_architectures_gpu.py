"""Every architecture on a GPU, by each way that a token goes, beyond its windows: against float64 and the emulator's bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.protocol import Device
from executor.model.architectures import ARCHITECTURES
from executor.model.generation import LanguageModel
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.step import Row
from tests.executor.model.mixture import mixed_logits
from tests.executor.model.variants import TOKENS
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.gpu

SIZES: Final[dict[str, Any]] = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ff": 512, "context": 128}
TYPES: Final = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q8_0, "output": Q.Q6_K}
"""As in the Q4_K_M files of people."""
TEXT: Final = tuple(int(token) for token in np.random.default_rng(4).integers(3, 500, 90))
METADATA: Final[dict[str, dict[str, object]]] = {"nanbeige": {"nanbeige.num_loops": 1}}
"""Layers that run several times are not computed."""


@pytest.fixture(scope="module")
def emulator() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened


def written(name: str, folder: Path) -> Path:
    """A file with all that those of the architecture may have."""
    return write_model(folder / "m.gguf", name, TYPES, full=True, **SIZES, metadata=METADATA.get(name))


def assert_close(made: NDArray[np.float32], exact: NDArray[np.float64]) -> None:
    assert np.abs(made - exact).max() <= 1e-4 * exact.std()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_ways_through_an_architecture_are_right(name: str, gpu: Device, tmp_path: Path) -> None:
    """One by one, a prompt in one step and in three, two sequences in a step, after a rewind, with drafts right and wrong."""
    with LanguageModel.load(written(name, tmp_path), gpu) as model:
        exact = ReferenceModel(tmp_path / "m.gguf", context=model.context).logits(list(TEXT))
        assert_close(model.logits(TEXT), exact)
        engine = model.engine(slots=2, context=128, rows=96)
        pages = engine.pages // 2
        engine.set_table(0, range(pages))
        engine.set_table(1, range(pages, 2 * pages))

        def step(*parts: tuple[int, range]) -> None:
            rows = [Row(slot, TEXT[at], at, True) for slot, positions in parts for at in positions]
            scores = engine.step(rows)
            assert_close(np.array([scores.logits(index) for index in range(len(rows))]), exact[[row.position for row in rows]])

        step((0, range(90)))
        step((1, range(40)))
        step((0, range(70, 71)), (1, range(40, 75)))
        step((0, range(71, 72)), (1, range(75, 76)))
        step((0, range(30, 60)), (1, range(76, 90)))
        engine.free()

    same_bits = GpuProfile.for_device(gpu).with_rules("batch_invariant")
    with LanguageModel.load(tmp_path / "m.gguf", gpu, profile=same_bits) as model:
        prompt = [*TEXT[:20], *TEXT[:20]]
        alone = model.generate(prompt, max_tokens=24, stop_tokens=()).tokens
        with model.scheduler(slots=2, context=128, draft=PromptLookup) as running:
            request = running.submit(prompt, max_tokens=24, stop_tokens=())
            running.run()
        assert request.tokens == list(alone)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_has_the_bits_of_the_emulator(name: str, gpu: Device, emulator: Device, tmp_path: Path) -> None:
    path = written(name, tmp_path)
    for logits in (mixed_logits, lambda path, device: LanguageModel.load(path, device).logits(TOKENS)):
        assert np.array_equal(logits(path, gpu).view(np.uint32), logits(path, emulator).view(np.uint32))
