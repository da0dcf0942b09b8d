"""starcoder: StarCoder and SantaCoder: as gpt2: learned positions, LayerNorm, biases, a network without a gate."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import no_rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    still = no_rope(head_dim(m))
    return dense_decoder(m, still, norm="layer", activation="gelu", gated=False, learned_positions=True)


ARCHITECTURE: Final = Architecture(name="starcoder", model_class="GPTBigCodeForCausalLM", build=_build)
