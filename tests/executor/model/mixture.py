"""Steps that mix prompts and decoding. With `batch_invariant` their logits have the same bits on every device:
golden/outputs/rows_logits.json has the hashes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.model.generation import LanguageModel
from executor.model.step import Row
from tests.executor.model.variants import TOKENS, VARIANTS
from tests.paths import GOLDEN

RECORDED: Final = GOLDEN / "outputs" / "rows_logits.json"

STEPS: Final = (
    [Row(0, token, at, True) for at, token in enumerate(TOKENS[:5])],
    [*(Row(1, token, at, False) for at, token in enumerate(TOKENS[:6])), Row(0, TOKENS[5], 5, True)],
    [Row(0, TOKENS[6], 6, True)],
)
"""A prompt, another one beside the first one's next token, and a token alone. All logits are those of TOKENS."""

MIXED_VARIANTS: Final = [
    variant
    for variant in VARIANTS
    if variant.name in ("llama-F16", "llama-rope-freqs-untied", "qwen2-Q5_0", "qwen3-wide-heads", "llama-576")
]
"""Every architecture, and what takes other ways through a layer. That the GEMV of rows has the bits of the one-row kernel is
known for each format."""


def mixed_logits(path: Path, device: Device, kv_type: str = "f32") -> NDArray[np.float32]:
    """The logits of STEPS, f32[rows, vocab]."""
    profile = GpuProfile.for_device(device).with_rules("batch_invariant")
    with LanguageModel.load(path, device, profile=profile) as model:
        engine = model.engine(slots=2, context=64, rows=8, kv_type=kv_type)
        engine.set_table(0, [3, 0])
        engine.set_table(1, [1, 2])
        found = []
        for rows in STEPS:
            scores = engine.step(rows)
            found += [scores.logits(index) for index in range(sum(row.scored for row in rows))]
    return np.array(found)


def digest(logits: NDArray[np.float32]) -> str:
    """Their hash."""
    return sha256(logits.tobytes()).hexdigest()
