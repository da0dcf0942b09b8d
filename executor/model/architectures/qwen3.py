"""qwen3: Qwen3 without experts, its embedding models and rerankers: each head of Q and K is normalised before it is rotated."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)), qk_norm=True, classifier=True)


ARCHITECTURE: Final = Architecture(name="qwen3", model_class="Qwen3ForCausalLM", build=_build)
