"""chatglm: ChatGLM 3 and GLM-4: gate and up in one tensor, half of each head rotated."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "adjacent", head_dim(m)), fused_gate=True)


ARCHITECTURE: Final = Architecture(name="chatglm", model_class="ChatGLMForConditionalGeneration", build=_build)
