"""The multi-warp vectorized GEMV: all warps of a block share some rows, and load weights as wide as the format's alignment
allows. The fast path on f32 activations, for every format, of one row of them or of several, for which a weight is loaded and
decoded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import FORMATS, find
from ptxgen.kernels.gemv.cooperative import CooperativeGemv
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.registry import GIVEN, Given, register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.target import WARP_SIZE

FOR_SEVERAL = 256
"""resident_threads for several rows of activations, whose sums take many registers."""


@register(format=FORMATS.values(), m=[None])
@register(format=FORMATS.values(), m=[GIVEN], resident_threads=[Given(FOR_SEVERAL)])
@dataclass(frozen=True)
class MwvGemv(CooperativeGemv):
    """y = W x, multi-warp vectorized: num_warps warps share a row, with wide loads, for rows_per_block rows at a time.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]. With m (batched_FORMAT_gemv) Y = X W^T for m rows of
    activations, y: f32[m, n], x: f32[m, k], and every weight decoded once for 8 of them. A row's bits depend on num_warps, not
    on the other rows or fields. A multiprocessor's registers hold resident_threads threads."""

    bit_free = ("rows_per_block", "resident_threads")  # warps share a row, so num_warps counts
    batched_alike = True
    num_warps: int = field(default=4, kw_only=True)
    rows_per_block: int = field(default=2, kw_only=True)
    resident_threads: int = field(default=640, kw_only=True)
    m: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_warps", high=16)
        require(self, "rows_per_block", high=4)
        require(self, "resident_threads", high=1024)
        if self.m is not None:
            require(self, "m", high=MOST_ROWS)

    @property
    def name(self) -> str:
        return f"{'mwv' if self.m is None else 'batched'}_{self.format.id}_gemv"

    @property
    def batch(self) -> tuple[int, ...]:
        return () if self.m is None else (self.m,)

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

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[MwvGemv]:
        format = find(fixed["format"])
        least: dict[str, Any] = {"num_warps": 1, "rows_per_block": 1, "resident_threads": 1}
        k, n = 1536 if 576 % format.block else 576, 3
        if "m" in fixed:
            yield cls(k=4096, n=5, **fixed)
            yield cls(k=3 * format.block, n=n, **least, **fixed)
            yield cls(k=k, n=7, num_warps=7, rows_per_block=3, **fixed)
            if format.block == 1:
                yield cls(k=1, n=2, **fixed)
                yield cls(k=98, n=n, **fixed)
            return
        if not format.common:
            yield cls(m=3, k=2 * format.block, n=n, num_warps=2, resident_threads=FOR_SEVERAL, **fixed)
            return
        yield cls(m=4, k=2048, n=5, resident_threads=FOR_SEVERAL, **fixed)
        yield cls(m=1, k=3 * format.block, n=n, **least, **fixed)
        yield cls(m=11, k=k, n=n, num_warps=5, rows_per_block=2, resident_threads=FOR_SEVERAL, **fixed)
        if format.block == 1:
            yield cls(m=3, k=98, n=n, resident_threads=FOR_SEVERAL, **fixed)  # rows of activations on 8-byte boundaries


def rows_by_mwv(kernel: GemvType, m: int) -> tuple[KernelType, ...]:
    """The kernel that multiplies m rows of f32 activations where this one multiplies one: whatever its strategy, so that only
    a row of mwv has the bits that it has alone. None for kernels of other activations."""
    if kernel.activation_planes or kernel.activation_f16_split:
        return ()
    own = {"num_warps": kernel.num_warps} if isinstance(kernel, MwvGemv) else {}
    return (MwvGemv(kernel.format, k=kernel.k, n=kernel.n, m=m, resident_threads=FOR_SEVERAL, **own),)
