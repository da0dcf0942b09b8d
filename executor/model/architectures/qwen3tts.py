"""qwen3tts: the language model of Qwen3-TTS: as the text of qwen3vl."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope, with_sections
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    turns = with_sections(m, rope(m, "neox", head_dim(m)), interleaved=True)
    return dense_decoder(m, turns, qk_norm=True)


ARCHITECTURE: Final = Architecture(name="qwen3tts", model_class="Qwen3TTSForConditionalGeneration", build=_build)
