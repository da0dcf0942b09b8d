"""bitnet: BitNet b1.58: what the last matrices of attention and of the network multiply is normalised; the head is the
embedding table."""

from __future__ import annotations

from typing import Final

from executor.layers.shape import BlockNorms
from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    norms = BlockNorms(attended="attn_sub_norm", activated="ffn_sub_norm")
    return dense_decoder(m, rope(m, "neox", head_dim(m)), norms=norms)


ARCHITECTURE: Final = Architecture(
    name="bitnet", model_class="BitNetForCausalLM", build=_build, unused=frozenset({"output.weight"})
)
