"""cohere2: Command R7B and Command A: as command-r, with a window in three layers of four, and only these are rotated."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SHARED_NORM, dense_decoder, head_dim, windows
from executor.model.ropes import not_rotated, rope
from executor.model.spec import ModelSpec
from ptxgen.kernels.attention.scores import Scoring


def _build(m: Metadata) -> ModelSpec:
    full, window = rope(m, "adjacent", head_dim(m)), windows(m, 4, default=m.integer("attention.sliding_window"))
    return dense_decoder(
        m,
        lambda layer: not_rotated(full) if window(layer) is None else full,
        norm="layer",
        norms=SHARED_NORM,
        parallel=True,
        scores=lambda layer: Scoring(window=window(layer)),
        logit_scale=m.number("logit_scale"),
    )


ARCHITECTURE: Final = Architecture(
    name="cohere2", model_class="Cohere2ForCausalLM", build=_build, unused=frozenset({"output.weight"})
)
