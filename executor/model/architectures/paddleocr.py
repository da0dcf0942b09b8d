"""paddleocr: the text of PaddleOCR-VL: Llama's block; the sections of positions of text are one."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope, with_sections
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, with_sections(m, rope(m, "neox", head_dim(m))))


ARCHITECTURE: Final = Architecture(name="paddleocr", model_class="PaddleOCRVLForConditionalGeneration", build=_build)
