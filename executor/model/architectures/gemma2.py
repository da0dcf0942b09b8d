"""gemma2: Gemma 2: norms before and behind each part, a window in every other layer, caps on scores and on logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SANDWICH, dense_decoder, head_dim, query_scale, windows
from executor.model.ropes import rope
from executor.model.spec import ModelSpec, RopeSpec
from ptxgen.kernels.attention.scores import Scoring

LARGE: Final = 46
"""Layers of the model whose scores are scaled by the width of a head as the embedding's width gives it."""


def _build(m: Metadata) -> ModelSpec:
    full, window = rope(m, "neox", head_dim(m)), windows(m, 2, default=4096)
    local = replace(full, base=m.positive("rope.freq_base_swa", full.base))
    scale, cap = query_scale(m, LARGE), m.number("attn_logit_softcapping", 50.0)

    def turns(layer: int) -> RopeSpec:
        return full if window(layer) is None else local

    return dense_decoder(
        m,
        turns,
        norms=SANDWICH,
        activation="gelu",
        scores=lambda layer: Scoring(window=window(layer), softcap=cap, scale=scale),
        embedding_scale=m.integer("embedding_length") ** 0.5,
        logit_softcap=m.number("final_logit_softcapping", 30.0),
    )


ARCHITECTURE: Final = Architecture(
    name="gemma2", model_class="Gemma2ForCausalLM", build=_build, unused=frozenset({"output.weight"})
)
