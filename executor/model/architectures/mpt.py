"""mpt: MPT: LayerNorm, a network without a gate, biases and clamped Q, K and V where the file says so; ALiBi, or learned
positions."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import alibi, dense_decoder, head_dim
from executor.model.ropes import no_rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(
        m,
        no_rope(head_dim(m)),
        norm="layer",
        activation="gelu",
        gated=False,
        qk_norm=None,
        qk_norm_of="row",
        scores=alibi(m),
        clamp=max(m.number("attention.clamp_kqv", 0.0), 0.0),
        learned_positions=m.has("position_embd.weight"),
        scaled_activations=True,
    )


ARCHITECTURE: Final = Architecture(
    name="mpt",
    model_class="MPTForCausalLM",
    build=_build,
    unused=frozenset({"attn_k_norm.weight", "attn_k_norm.bias"}),  # without those of queries
)
