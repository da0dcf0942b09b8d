"""hunyuan-dense: Hunyuan without experts: heads of Q and K are normalised after the rotation; the file may enlarge its base."""

from __future__ import annotations

from typing import Final

from executor.model.architecture import Architecture
from executor.model.metadata import Metadata
from executor.model.parts import ONE_EXPERT, dense_decoder, head_dim
from executor.model.ropes import enlarged, rope
from executor.model.spec import ModelSpec


def _build(m: Metadata) -> ModelSpec:
    return dense_decoder(m, enlarged(m, rope(m, "neox", head_dim(m))), qk_norm=True, qk_norm_of="rotated")


ARCHITECTURE: Final = Architecture(
    name="hunyuan-dense", model_class="HunYuanDenseV1ForCausalLM", build=_build, computed=ONE_EXPERT
)
