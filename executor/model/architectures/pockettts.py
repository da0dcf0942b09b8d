"""pockettts: the language model of Pocket TTS: LayerNorm, and a network without a gate; the head is the embedding table."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "adjacent", head_dim(m)), norm="layer", activation="gelu", gated=False)


ARCHITECTURE: Final = Architecture(
    name="pockettts", model_class="PocketTTSForConditionalGeneration", build=_build, unused=frozenset({"output.weight"})
)
