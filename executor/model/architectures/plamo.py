"""plamo: PLaMo 13B: attention and the network read one norm."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SHARED_NORM, dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)), norms=SHARED_NORM, parallel=True)


ARCHITECTURE: Final = Architecture(name="plamo", model_class="PlamoForCausalLM", build=_build)
