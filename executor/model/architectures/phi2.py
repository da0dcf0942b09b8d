"""phi2: Phi-1, 1.5 and 2: attention and a network without a gate read one LayerNorm; part of each head is rotated."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SHARED_NORM, dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(
        m, rope(m, "neox", head_dim(m)), norm="layer", norms=SHARED_NORM, parallel=True, activation="gelu", gated=False
    )


ARCHITECTURE: Final = Architecture(name="phi2", model_class="PhiForCausalLM", build=_build)
