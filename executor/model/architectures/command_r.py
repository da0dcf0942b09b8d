"""command-r: Command R: attention and the network read one LayerNorm; the head is the embedding table, and logits are scaled.
Models of 64 layers and more normalise each head, with weights of its own."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SHARED_NORM, dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec

NORMED: Final = 64
"""From so many layers on heads are normalised."""


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(
        m,
        rope(m, "adjacent", head_dim(m)),
        norm="layer",
        norms=SHARED_NORM,
        parallel=True,
        qk_norm=m.layers() >= NORMED,
        qk_norm_of="rows",
        logit_scale=m.number("logit_scale", 0.0) or 1.0,
    )


ARCHITECTURE: Final = Architecture(
    name="command-r", model_class="CohereForCausalLM", build=_build, unused=frozenset({"output.weight"})
)
