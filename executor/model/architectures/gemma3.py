"""gemma3: Gemma 3 (text): as Gemma 2 with normalised heads instead of capped scores; five layers of six have a window, and a
rotation of their own base that nothing scales."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SANDWICH, dense_decoder, head_dim, query_scale, windows
from executor.model.ropes import rope, unscaled
from executor.model.spec import ModelSpec, RopeSpec
from ptxgen.kernels.attention.scores import Scoring

LARGE: Final = 62
"""Layers of the model whose scores are scaled by the width of a head as the embedding's width gives it."""


def _build(m: Metadata) -> ModelSpec:
    full, window = rope(m, "neox", head_dim(m)), windows(m, 6)
    local = unscaled(full, m.positive("rope.freq_base_swa", 10000.0))
    scale = query_scale(m, LARGE)

    def turns(layer: int) -> RopeSpec:
        return full if window(layer) is None else local

    return dense_decoder(
        m,
        turns,
        norms=SANDWICH,
        activation="gelu",
        qk_norm=True,
        scores=lambda layer: Scoring(window=window(layer), scale=scale),
        embedding_scale=m.integer("embedding_length") ** 0.5,
        logit_softcap=m.number("final_logit_softcapping", 0.0),
    )


ARCHITECTURE: Final = Architecture(name="gemma3", model_class="Gemma3ForCausalLM", build=_build)
