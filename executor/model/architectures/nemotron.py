"""nemotron: Nemotron 3 and 4, Minitron: LayerNorm, and a network without a gate whose activation is the square of a ReLU."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)), norm="layer", activation="relu2", gated=False)


ARCHITECTURE: Final = Architecture(name="nemotron", model_class="NemotronForCausalLM", build=_build)
