"""baichuan: Baichuan 7B and 13B: Llama's block, rotated in the model of 32 layers alone, as in llama.cpp; that of 40 has
ALiBi."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import not_rotated, rope
from executor.model.spec import ModelSpec
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring

ROTATED: Final = 32
BIASED: Final = 40
"""Layers of the models with these positions."""


def _build(m: Metadata) -> ModelSpec:
    full = rope(m, "adjacent", head_dim(m))
    turns = full if m.layers() == ROTATED else not_rotated(full)
    return dense_decoder(m, turns, scores=Scoring(alibi=8.0) if m.layers() == BIASED else PLAIN_SCORES)


ARCHITECTURE: Final = Architecture(name="baichuan", model_class="BaichuanForCausalLM", build=_build)
