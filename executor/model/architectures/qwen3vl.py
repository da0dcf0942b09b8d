"""qwen3vl: the text of Qwen3-VL: as qwen3; the sections of positions of text are one."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope, with_sections
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    turns = with_sections(m, rope(m, "neox", head_dim(m)), interleaved=True)
    return dense_decoder(m, turns, qk_norm=True, classifier=True)


ARCHITECTURE: Final = Architecture(name="qwen3vl", model_class="Qwen3VLForConditionalGeneration", build=_build)
