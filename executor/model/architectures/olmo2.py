"""olmo2: OLMo 2 and 3: norms only behind each part, queries and keys normalised as whole rows; OLMo 3 has a window in three
layers of four, whose rotation nothing scales."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import POST_NORMS, dense_decoder, head_dim, windows
from executor.model.ropes import rope, unscaled
from executor.model.spec import ModelSpec
from ptxgen.kernels.attention.scores import Scoring


def _build(m: Metadata) -> ModelSpec:
    full, window = rope(m, "neox", head_dim(m)), windows(m, 4)
    local = unscaled(full, full.base)
    return dense_decoder(
        m,
        lambda layer: full if window(layer) is None else local,
        norms=POST_NORMS,
        qk_norm=True,
        qk_norm_of="row",
        scores=lambda layer: Scoring(window=window(layer)),
    )


ARCHITECTURE: Final = Architecture(name="olmo2", model_class="Olmo2ForCausalLM", build=_build)
