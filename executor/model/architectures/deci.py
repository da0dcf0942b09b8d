"""deci: DeciLM, Nemotron 51B and Ultra: Llama's block, of which layers may lack attention, or have a matrix in its place. As in
llama.cpp one without a network adds nothing."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "adjacent", head_dim(m, least=0)), gaps=True)


ARCHITECTURE: Final = Architecture(name="deci", model_class="DeciLMForCausalLM", build=_build)
