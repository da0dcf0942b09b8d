"""ernie4_5: ERNIE 4.5 without experts: Llama's block."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "adjacent", head_dim(m)))


ARCHITECTURE: Final = Architecture(
    name="ernie4_5", model_class="Ernie4_5ForCausalLM", build=_build, unused=frozenset({"attn_output.bias"})
)
