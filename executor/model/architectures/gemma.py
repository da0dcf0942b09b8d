"""gemma: Gemma 1: GeGLU, and embeddings times the square root of their width."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    scale = m.integer("embedding_length") ** 0.5
    return dense_decoder(m, rope(m, "neox", head_dim(m)), activation="gelu", embedding_scale=scale)


ARCHITECTURE: Final = Architecture(
    name="gemma", model_class="GemmaForCausalLM", build=_build, unused=frozenset({"output.weight"})
)
