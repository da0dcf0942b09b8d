"""falcon: Falcon 7B, 40B and 180B: attention and a network without a gate side by side, after one LayerNorm or one each."""

from __future__ import annotations

from typing import Final

from executor.layers.shape import BlockNorms
from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SHARED_NORM, dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    two = BlockNorms(attention="attn_norm_2", ffn="attn_norm")
    return dense_decoder(
        m,
        rope(m, "neox", head_dim(m)),
        norm="layer",
        norms=two if m.has("blk.0.attn_norm_2.weight") else SHARED_NORM,
        parallel=True,
        activation="gelu",
        gated=False,
    )


ARCHITECTURE: Final = Architecture(name="falcon", model_class="FalconForCausalLM", build=_build)
