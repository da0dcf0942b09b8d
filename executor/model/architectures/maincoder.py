"""maincoder: Maincoder 1B: Llama's block with heads of Q and K that are normalised after the rotation."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "adjacent", head_dim(m)), qk_norm=True, qk_norm_of="rotated")


ARCHITECTURE: Final = Architecture(name="maincoder", model_class="MaincoderForCausalLM", build=_build)
