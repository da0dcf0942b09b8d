"""qwen3: Qwen3 without experts, and its embedding models: each head of Q and K is normalised before it is rotated."""

from __future__ import annotations

from functools import partial
from typing import Final

from executor.model.architecture import Architecture
from executor.model.parts import DENSE, pre_norm_decoder, pre_norm_tensors

ARCHITECTURE: Final = Architecture(
    name="qwen3",
    model_class="Qwen3ForCausalLM",
    build=partial(pre_norm_decoder, rope_style="neox", qk_norm=True),
    tensors=pre_norm_tensors,
    computed=DENSE,
)
