"""refact: Refact 1.6B: Llama's block with ALiBi in the place of the rotation. llama.cpp adds no biases but those of Q, K and
V."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import not_rotated
from executor.model.spec import ModelSpec, RopeSpec
from ptxgen.kernels.attention.scores import Scoring


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, not_rotated(RopeSpec("adjacent", head_dim(m), 10000.0)), scores=Scoring(alibi=8.0))


ARCHITECTURE: Final = Architecture(
    name="refact",
    model_class="GPTRefactForCausalLM",
    build=_build,
    unused=frozenset({"attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias", "rope_freqs.weight"}),
)
