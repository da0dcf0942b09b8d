"""stablelm: StableLM: LayerNorm, part of each head rotated; StableLM 2 12B has one norm for attention and the network. Heads
may be normalised, each with weights of its own."""

from __future__ import annotations

from typing import Final

from executor.layers.shape import PRE_NORMS
from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SHARED_NORM, dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    one = not m.has("blk.0.ffn_norm.weight")
    norms = SHARED_NORM if one else PRE_NORMS
    turns = rope(m, "neox", head_dim(m))
    return dense_decoder(m, turns, norm="layer", norms=norms, parallel=one, qk_norm=None, qk_norm_of="rows")


ARCHITECTURE: Final = Architecture(name="stablelm", model_class="StableLmForCausalLM", build=_build)
