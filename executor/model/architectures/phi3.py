"""phi3: Phi-3 and Phi-4: Q, K and V are one tensor, gate and up another; divisors of rotations for short and for long
contexts. Any window of attention is ignored, as in llama.cpp."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)), fused_gate=True)


ARCHITECTURE: Final = Architecture(name="phi3", model_class="Phi3ForCausalLM", build=_build)
