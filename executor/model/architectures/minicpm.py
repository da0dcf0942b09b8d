"""minicpm: MiniCPM 1 to 4 without experts: Granite's block; what the file does not say has the values of MiniCPM 2B."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(
        m,
        rope(m, "adjacent", head_dim(m)),
        residual_scale=m.number("residual_scale", 1.4 / m.layers() ** 0.5) or 1.0,
        embedding_scale=m.number("embedding_scale", 12.0) or 1.0,
        logit_scale=1.0 / m.positive("logit_scale", 256.0 / m.integer("embedding_length")),
    )


ARCHITECTURE: Final = Architecture(name="minicpm", model_class="MiniCPMForCausalLM", build=_build)
