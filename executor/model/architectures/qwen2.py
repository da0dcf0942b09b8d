"""qwen2: Qwen1.5, Qwen2 and Qwen2.5: Q, K and V have biases. Any window of attention is ignored, as in llama.cpp."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)))


ARCHITECTURE: Final = Architecture(name="qwen2", model_class="Qwen2ForCausalLM", build=_build)
