"""The multi-warp vectorized GEMV: all warps of a block share some rows, and load weights as wide as the format's alignment
allows. The fast path on f32 activations, for every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ptxgen.formats import FORMATS, find
from ptxgen.kernels.gemv.cooperative import CooperativeGemv
from ptxgen.kernels.registry import register_variants
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE


@dataclass(frozen=True)
class WidestLoadsGemv(CooperativeGemv):
    """num_warps cooperative warps over rows_per_block rows at a time, with the widest loads that every row's address allows. A
    multiprocessor's registers hold resident_threads threads."""

    num_warps: int = field(default=4, kw_only=True)
    rows_per_block: int = field(default=2, kw_only=True)
    resident_threads: int = field(default=640, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_warps", high=16)
        require(self, "rows_per_block", high=4)
        require(self, "resident_threads", high=1024)

    @property
    def warps(self) -> int:
        return self.num_warps

    @property
    def resident(self) -> int:
        return max(1, self.resident_threads // (self.num_warps * WARP_SIZE))

    @property
    def rows(self) -> int:
        return self.rows_per_block

    @property
    def width(self) -> int:
        # Where a block is one value, columns are neighbouring blocks, and only a k that they divide keeps all rows aligned.
        return max(width for width in self.format.widths if self.format.columns % width == 0 or self.k % width == 0)


@register_variants("format", {f"mwv_{format.id}_gemv": format for format in FORMATS.values()})
@dataclass(frozen=True)
class MwvGemv(WidestLoadsGemv):
    """y = W x, multi-warp vectorized: num_warps warps share a row, with wide loads, for rows_per_block rows at a time.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]. A row's bits depend on num_warps, not on
    rows_per_block."""

    @property
    def name(self) -> str:
        return f"mwv_{self.format.id}_gemv"

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[MwvGemv]:
        format = find(fixed["format"])
        yield cls(k=4096, n=5, **fixed)
        yield cls(k=3 * format.block, n=3, num_warps=1, rows_per_block=1, resident_threads=1, **fixed)
        yield cls(k=1536 if format.block == 256 else 576, n=7, num_warps=7, rows_per_block=3, **fixed)
        if format.block == 1:
            yield cls(k=1, n=2, **fixed)
            yield cls(k=98, n=3, **fixed)
