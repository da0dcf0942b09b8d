"""internlm2: InternLM 2 and 2.5: Llama's block."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "adjacent", head_dim(m)))


ARCHITECTURE: Final = Architecture(name="internlm2", model_class="InternLM2ForCausalLM", build=_build)
