"""mistral3: Ministral 3 and Mistral Small 3.1 on: Llama with YaRN, whose constants the file has; queries grow with their
position beyond the original context."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import original_context, rope
from executor.model.spec import ModelSpec
from ptxgen.kernels.attention.temperature import Temperature


def _build(m: Metadata) -> ModelSpec:
    scaled = m.number("attention.temperature_scale", 0.0) != 0.0
    temperature = Temperature(m.positive("attention.temperature_scale"), original_context(m)) if scaled else None
    return dense_decoder(m, rope(m, "adjacent", head_dim(m), yarn_keys=True), temperature=temperature)


ARCHITECTURE: Final = Architecture(name="mistral3", model_class="Mistral3ForConditionalGeneration", build=_build)
