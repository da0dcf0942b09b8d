"""qwen: the first Qwen: Q, K and V are one tensor with a bias; gate and up count together in the length of the network."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)), ff_share=2)


ARCHITECTURE: Final = Architecture(name="qwen", model_class="QWenLMHeadModel", build=_build)
