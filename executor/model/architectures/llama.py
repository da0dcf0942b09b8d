"""llama: Llama 1 to 3, Mistral, SmolLM and others with this block. Any window of attention is ignored, as in llama.cpp."""

from __future__ import annotations

from functools import partial
from typing import Final

from executor.model.architecture import Architecture
from executor.model.parts import DENSE, pre_norm_decoder, pre_norm_tensors

ARCHITECTURE: Final = Architecture(
    name="llama",
    model_class="LlamaForCausalLM",
    build=partial(pre_norm_decoder, rope_style="adjacent"),
    tensors=pre_norm_tensors,
    computed=DENSE,
)
