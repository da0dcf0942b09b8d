"""seed_oss: Seed-OSS: Llama's block with biases of Q, K and V."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import LATER_PRE_NORM, dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)), norms=LATER_PRE_NORM)


ARCHITECTURE: Final = Architecture(name="seed_oss", model_class="SeedOssForCausalLM", build=_build)
