"""The wide GEMV: eight warps a row, one byte column a lane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptxgen.formats import COMMON
from ptxgen.kernels.gemv.cooperative import CooperativeGemv
from ptxgen.kernels.gemv.gemv_type import model_cases
from ptxgen.kernels.registry import register


@register(format=COMMON.values())
@dataclass(frozen=True)
class WideGemv(CooperativeGemv):
    """y = W x, wide: 8 warps a row, whose sums meet in shared memory.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]."""

    name_pattern = "wide_{format}_gemv"
    read_only = False
    warps = 8
    rows = 1
    width = 1

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[WideGemv]:
        return model_cases(cls, fixed, (4096, 5), (256, 1), (1536, 7), (18944, 2))
