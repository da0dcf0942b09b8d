"""cogvlm: the text of CogVLM: Llama's block, pairs of halves. Experts of images and divisors of rotations are not used."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec

OF_IMAGES: Final = ("attn_qkv", "attn_output", "gate", "up", "down")


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, rope(m, "neox", head_dim(m)))


ARCHITECTURE: Final = Architecture(
    name="cogvlm",
    model_class="CogVLMForCausalLM",
    build=_build,
    unused=frozenset({"rope_freqs.weight", *(f"vis_{part}.weight" for part in OF_IMAGES)}),
)
