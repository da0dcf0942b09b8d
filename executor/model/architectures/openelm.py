"""openelm: OpenELM: layers of different sizes; heads of Q and K are normalised, the head is the embedding table."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)), qk_norm=True)


ARCHITECTURE: Final = Architecture(
    name="openelm", model_class="OpenELMForCausalLM", build=_build, unused=frozenset({"output.weight"})
)
