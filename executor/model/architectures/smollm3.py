"""smollm3: SmolLM3: Llama without rotation in every fourth layer."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import not_rotated, rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    full = rope(m, "adjacent", head_dim(m))
    return dense_decoder(m, lambda layer: full if (layer + 1) % 4 else not_rotated(full))


ARCHITECTURE: Final = Architecture(name="smollm3", model_class="SmolLM3ForCausalLM", build=_build)
