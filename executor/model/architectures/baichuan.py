"""baichuan: Baichuan 7B: Llama's block, rotated in the model of 32 layers alone, as in llama.cpp. The 13B, of 40 layers, has
ALiBi, which is not computed."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import not_rotated, rope
from executor.model.spec import ModelSpec

ROTATED: Final = 32
BIASED: Final = 40
"""Layers of the models with these positions."""


def _build(m: Metadata) -> ModelSpec:
    if m.layers() == BIASED:
        m.refuse(
            f"{m.name('block_count')} is {BIASED}: the 13B has ALiBi, which is not computed; supported: the 7B, of {ROTATED}"
        )
    full = rope(m, "adjacent", head_dim(m))
    return dense_decoder(m, full if m.layers() == ROTATED else not_rotated(full))


ARCHITECTURE: Final = Architecture(name="baichuan", model_class="BaichuanForCausalLM", build=_build)
