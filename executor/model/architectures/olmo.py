"""olmo: OLMo 1: LayerNorm without weights; queries, keys and values may be clamped."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    clamp = max(m.number("attention.clamp_kqv", 0.0), 0.0)
    return dense_decoder(m, rope(m, "adjacent", head_dim(m)), norm="layer", weighted=False, clamp=clamp)


ARCHITECTURE: Final = Architecture(name="olmo", model_class="OlmoForCausalLM", build=_build)
