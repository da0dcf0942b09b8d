"""hunyuan_vl: the text of Hunyuan OCR: as hunyuan-dense; the sections of positions of text are one."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import ONE_EXPERT, dense_decoder, head_dim
from executor.model.ropes import enlarged, has_sections, rope, with_sections
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    turns = enlarged(m, rope(m, "neox", head_dim(m)))
    return dense_decoder(m, with_sections(m, turns) if has_sections(m) else turns, qk_norm=True, qk_norm_of="rotated")


ARCHITECTURE: Final = Architecture(
    name="hunyuan_vl", model_class="HunYuanVLForConditionalGeneration", build=_build, computed=ONE_EXPERT
)
