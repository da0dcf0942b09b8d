"""qwen2vl: the text of Qwen2-VL and Qwen2.5-VL: as qwen2; the sections of positions of text are one."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope, with_sections
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, with_sections(m, rope(m, "neox", head_dim(m))), epsilon=0.0)


ARCHITECTURE: Final = Architecture(
    name="qwen2vl", model_class="Qwen2VLForConditionalGeneration", build=_build, unused=frozenset({"output.bias"})
)
