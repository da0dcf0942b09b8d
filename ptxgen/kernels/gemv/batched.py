"""GEMV of several rows of activations at once: a weight is loaded and decoded once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ptxgen.formats import FORMATS, find
from ptxgen.kernels.gemv.mwv import WidestLoadsGemv
from ptxgen.kernels.registry import register_variants
from ptxgen.kernels.shape import MOST_ROWS, require


@register_variants("format", {f"batched_{format.id}_gemv": format for format in FORMATS.values()})
@dataclass(frozen=True)
class BatchedGemv(WidestLoadsGemv):
    """Y = X W^T: as the multi-warp vectorized kernel, with every weight decoded once for m rows of activations.

    y: f32[m, n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[m, k]. Row i of y has the bits of mwv with the same
    num_warps on row i of x. Beyond 8 rows weights are read again for every 8."""

    m: int = field(kw_only=True)
    resident_threads: int = field(default=256, kw_only=True)  # the sums of 8 rows take many registers

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", high=MOST_ROWS)

    @property
    def name(self) -> str:
        return f"batched_{self.format.id}_gemv"

    @property
    def batch(self) -> tuple[int, ...]:
        return (self.m,)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[BatchedGemv]:
        format = find(fixed["format"])
        yield cls(m=4, k=2048, n=5, **fixed)
        yield cls(m=1, k=3 * format.block, n=3, num_warps=1, rows_per_block=1, resident_threads=1, **fixed)
        yield cls(m=11, k=1536 if format.block == 256 else 576, n=3, num_warps=5, rows_per_block=2, **fixed)
        if format.block == 1:
            yield cls(m=3, k=98, n=3, **fixed)  # rows of activations on 8-byte boundaries
