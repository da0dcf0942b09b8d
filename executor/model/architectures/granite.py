"""granite: Granite 3 and 4 without experts: Llama with scales of embeddings, scores, branches and logits."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import not_rotated, rope
from executor.model.spec import ModelSpec, RopeSpec
from ptxgen.kernels.attention.scores import Scoring


def _build(m: Metadata) -> ModelSpec:
    full = rope(m, "adjacent", head_dim(m))
    return scaled_decoder(m, full if m.flag("rope.scaling.finetuned", True) else not_rotated(full))


def scaled_decoder(m: Metadata, rope: RopeSpec) -> ModelSpec:
    """Llama's, with the scales."""
    return dense_decoder(
        m,
        rope,
        scores=Scoring(scale=m.number("attention.scale", 0.0) or None),
        residual_scale=m.number("residual_scale", 0.0) or 1.0,
        embedding_scale=m.number("embedding_scale", 0.0) or 1.0,
        logit_scale=1.0 / m.positive("logit_scale"),
    )


ARCHITECTURE: Final = Architecture(name="granite", model_class="GraniteForCausalLM", build=_build)
