"""granitemoe: Granite MoE whose files have no experts: as granite, but always rotated."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.architectures.granite import scaled_decoder
from executor.model.metadata import Metadata
from executor.model.parts import head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return scaled_decoder(m, rope(m, "adjacent", head_dim(m)))


ARCHITECTURE: Final = Architecture(name="granitemoe", model_class="GraniteMoeForCausalLM", build=_build)
