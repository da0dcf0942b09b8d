"""exaone4: EXAONE 4: norms only behind each part and of each head; of the 32B, three layers of four have a window, and only
these are rotated."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import POST_NORMS, dense_decoder, head_dim, unwindowed, windows
from executor.model.ropes import not_rotated, rope
from executor.model.spec import ModelSpec, RopeSpec
from ptxgen.kernels.attention.scores import Scoring

WINDOWED: Final = 64
"""Layers of the model that has a window, the 32B."""


def _build(m: Metadata) -> ModelSpec:
    full = rope(m, "neox", head_dim(m))
    window = windows(m, 4, default=4096) if m.layers() == WINDOWED else unwindowed

    def turns(layer: int) -> RopeSpec:
        return not_rotated(full) if m.layers() == WINDOWED and window(layer) is None else full

    return dense_decoder(m, turns, norms=POST_NORMS, qk_norm=True, scores=lambda layer: Scoring(window=window(layer)))


ARCHITECTURE: Final = Architecture(name="exaone4", model_class="Exaone4ForCausalLM", build=_build)
