"""gptneox: GPT-NeoX, Pythia and others: LayerNorm, biases; attention and the network side by side where the file says so."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import dense_decoder, head_dim
from executor.model.ropes import rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(
        m,
        rope(m, "neox", head_dim(m)),
        norm="layer",
        parallel=m.flag("use_parallel_residual", True),
        activation="gelu",
        gated=False,
    )


ARCHITECTURE: Final = Architecture(name="gptneox", model_class="GPTNeoXForCausalLM", build=_build)
