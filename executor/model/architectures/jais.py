"""jais: Jais 1: LayerNorm, biases, ALiBi in the place of positions; scores are divided by the width of a head, not by its
root."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import alibi, dense_decoder, head_dim
from executor.model.ropes import no_rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    width = head_dim(m)
    still = no_rope(width)
    return dense_decoder(m, still, norm="layer", scores=alibi(m, scale=1 / width))


ARCHITECTURE: Final = Architecture(name="jais", model_class="JAISLMHeadModel", build=_build)
