"""nanbeige: Nanbeige 4: Llama's block. Models that run their layers several times are not computed."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import DENSE, dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "adjacent", head_dim(m)))


ARCHITECTURE: Final = Architecture(
    name="nanbeige", model_class="NanbeigeForCausalLM", build=_build, computed=DENSE | {"num_loops": (1,)}
)
