"""muse-glimmer: Muse Glimmer: norms before and behind each part, of each head and of embeddings; attention is gated; three
layers of four have a window, and only these are rotated."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SANDWICH, dense_decoder, head_dim, norm_spec, windows
from executor.model.ropes import not_rotated, rope, unscaled
from executor.model.spec import ModelSpec
from ptxgen.kernels.attention.scores import Scoring


def _build(m: Metadata) -> ModelSpec:
    full, window = rope(m, "adjacent", head_dim(m)), windows(m, 4, default=m.integer("attention.sliding_window"))
    local = unscaled(full, m.positive("rope.freq_base_swa", full.base))
    return dense_decoder(
        m,
        lambda layer: not_rotated(full) if window(layer) is None else local,
        norms=SANDWICH,
        output_eps=1e-8,
        qk_norm=True,
        scores=lambda layer: Scoring(window=window(layer)),
        gated_attention=True,
        embedding_norm=replace(norm_spec(m, "rms", None), weighted=False),
        logit_scale=m.number("logit_scale"),
        logit_softcap=m.number("final_logit_softcapping", 30.0),
    )


ARCHITECTURE: Final = Architecture(
    name="muse-glimmer",
    model_class="MuseGlimmerForCausalLM",
    build=_build,
    parts=frozenset({"gated attention"}),
)
