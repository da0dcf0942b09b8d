"""bloom: BLOOM: LayerNorm, of the embeddings too, biases, a network without a gate, Q, K and V in one tensor; ALiBi in the
place of positions."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim, norm_spec
from executor.model.ropes import no_rope
from executor.model.spec import ModelSpec
from ptxgen.kernels.attention.scores import Scoring


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(
        m,
        no_rope(head_dim(m)),
        norm="layer",
        activation="gelu",
        gated=False,
        scores=Scoring(alibi=8.0),
        embedding_norm=norm_spec(m, "layer", None, "token_embd_norm"),
    )


ARCHITECTURE: Final = Architecture(name="bloom", model_class="BloomForCausalLM", build=_build)
