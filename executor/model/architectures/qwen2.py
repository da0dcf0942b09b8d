"""qwen2: Qwen1.5, Qwen2 and Qwen2.5: Q, K and V always have biases. Any window of attention is ignored, as in llama.cpp."""

from __future__ import annotations

from functools import partial
from typing import Final

from executor.model.architecture import Architecture
from executor.model.parts import DENSE, pre_norm_decoder, pre_norm_tensors

ARCHITECTURE: Final = Architecture(
    name="qwen2",
    model_class="Qwen2ForCausalLM",
    build=partial(pre_norm_decoder, rope_style="neox", bias=True),
    tensors=pre_norm_tensors,
    computed=DENSE,
)
