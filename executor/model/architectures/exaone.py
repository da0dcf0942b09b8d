"""exaone: EXAONE 3: Llama's block with pairs of halves."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)))


ARCHITECTURE: Final = Architecture(name="exaone", model_class="ExaoneForCausalLM", build=_build)
