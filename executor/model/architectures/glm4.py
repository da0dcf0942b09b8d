"""glm4: GLM-4-0414: norms before and behind each part, gate and up in one tensor, half of each head rotated; as halves where
the file has sections for images."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import SANDWICH, dense_decoder, head_dim
from executor.model.ropes import has_sections, rope, with_sections
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    turns = with_sections(m, rope(m, "neox", head_dim(m))) if has_sections(m) else rope(m, "adjacent", head_dim(m))
    return dense_decoder(m, turns, norms=SANDWICH, fused_gate=True)


ARCHITECTURE: Final = Architecture(name="glm4", model_class="Glm4ForCausalLM", build=_build)
