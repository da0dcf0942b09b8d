"""plamo3: PLaMo 3: norms before and behind each part and of each head, gate and up in one tensor; seven layers of eight have a
window, and a rotation of their own base that nothing scales."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SANDWICH, dense_decoder, head_dim, windows
from executor.model.ropes import rope, unscaled
from executor.model.spec import ModelSpec, RopeSpec
from ptxgen.kernels.attention.scores import Scoring


def _build(m: Metadata) -> ModelSpec:
    full, window = rope(m, "neox", head_dim(m)), windows(m, 8)
    local = unscaled(full, m.positive("rope.freq_base_swa", 10000.0))

    def turns(layer: int) -> RopeSpec:
        return full if window(layer) is None else local

    return dense_decoder(
        m, turns, norms=SANDWICH, fused_gate=True, qk_norm=True, scores=lambda layer: Scoring(window=window(layer))
    )


ARCHITECTURE: Final = Architecture(name="plamo3", model_class="Plamo3ForCausalLM", build=_build)
