"""hw_dp4a with the residual connection and with what the RMSNorm of the stream needs, so that the norm takes no launch: whoever
multiplies a matrix by the norm multiplies it by the digits of y gamma, and divides by the root of the mean square."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.gemv.asked_rows import ASKED, BORROWED, MOST_OF, AskedRows
from ptxgen.kernels.gemv.chunks import Warp
from ptxgen.kernels.gemv.gated_hw_dp4a import GatedHwDp4aGemv
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv, HwDp4aGemvResidual
from ptxgen.kernels.gemv.hw_dp4a_type import MULTIPROCESSORS, NO_RING
from ptxgen.kernels.gemv.joined_hw_dp4a import JOINED
from ptxgen.kernels.gemv.row_digits import RowDigits
from ptxgen.kernels.norm.squares import exact_squares, group_squares, squares_bound
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32

IDLE_WEIGHTS = 100_000
"""Weights of a block of 32 rows, times the share of the multiprocessors that have none: from so many on blocks share groups, so
that each multiprocessor has as many rows. On an H100, in steps: 74,000 (k = 3072, n = 1024) won 56 us of 590 by whole groups,
92,000 (18944, 3584) 37 of 2128; 135,000 (8192, 2048) lost 8 of 500. On an H200 that won 7 of 394 by blocks of 16 rows, and
182,000 (8960, 1536) 30 of 726 by blocks of 12."""


@register(format=JOINED)
@dataclass(frozen=True)
class HwDp4aGemvResidualNormed(RowDigits, HwDp4aGemvResidual):
    """y += W x on quantised activations, the digits of y * gamma and the squares of y: hw_dp4a_gemv_residual, with its bits,
    and what a norm of y needs. W2 (y gamma / rms) is (W2 (y gamma)) / rms.

    y: f32[n], in place, n a multiple of 32; w, digits, scales and sums as in hw_dp4a; gamma: f32[n]. y_digits: s8[1,
    out_digits, n], y_scales: f32[1, n / 32], y_sums: s32[1, n / 32]: those of the f32 products y * gamma. squares: f32[n / 32],
    the sum of y^2 of each 32 rows as group_squares (norm/squares.py) makes it. counters: see RowDigits.

    asks: of two matrices of n columns and asks_of rows, next_w and next_w2: u8[asks_of, row_bytes], which the launch behind
    multiplies, it asks the L2 cache for so many rows, each asks_every behind the one before (asked_rows.py). No bit depends on
    it. 0: for none, and there are no such arguments."""

    name_pattern = "hw_dp4a_{format}_gemv_residual_normed"
    bit_free = (*RowDigits.bit_free, "asks", "asks_every", "asks_of")
    of_shape = (*RowDigits.of_shape, "asks", "asks_every", "asks_of")  # all are of the neighbours
    asks: int = field(default=0, kw_only=True)
    asks_every: int = field(default=1, kw_only=True)
    asks_of: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "asks", low=0)
        require(self, "asks_every")
        require(self, "asks_of", low=0)
        if self.asks and (self.asks - 1) * self.asks_every >= self.asks_of:
            raise ArgumentError(
                f"{self.name}: asks must be {-(-self.asks_of // self.asks_every)} or fewer: there are {self.asks_of} rows, and "
                f"each {self.asks_every} are asked for, got {self.asks}"
            )
        if self.normed:
            raise ArgumentError(f"{self.name} leaves a norm and completes none: normed must be False")

    @classmethod
    def suited(cls, product: HwDp4aGemv, digits: int) -> HwDp4aGemvResidualNormed | None:
        """The one for a plain product, if there are whole groups of 32 rows. A block has such a group, since what the blocks of
        a group count each other by takes as long as a norm; but where that leaves many multiprocessors idle for long, several
        blocks share a group."""
        if product.n % BLOCK:
            return None
        idle_weights = (1 - product.n / BLOCK / MULTIPROCESSORS) * BLOCK * product.k
        most = BLOCK // product.format.shared_bytes  # more of Q6_K would not fit the registers of 16 warps
        of_block = most if idle_weights <= IDLE_WEIGHTS else min(most, -(-product.n // MULTIPROCESSORS))
        shares = product.fragments.shares
        rows = max(1, of_block // 16 // shares)
        warps = -(-of_block // (rows * shares))
        settings = {**product.parameters(), "num_warps": warps, "rows_per_warp": rows, "turns": 1, **NO_RING}
        return cls(**settings, format=product.format, out_digits=digits)

    def with_weight_ring(self) -> KernelType | None:
        """In steps of an H200 3 slots instead of 2 won 28 us of 1537 by down of the 8B (two rows a warp), and lost 7 of 652 by
        that of the 1.5B (one)."""
        return self.ringed(3 if self.rows_per_warp > 1 else 2)

    def between(self, before: KernelType | None, behind: KernelType | None) -> Self:
        """Before gate and up without a ring, which begin when this one has ended, it asks for the first rows of their first
        warps, of as many as make ASKED bytes."""
        kernel = super().between(before, behind)
        if not (kernel.ring and isinstance(behind, GatedHwDp4aGemv)) or behind.ring:
            return kernel
        if (behind.format, behind.k) != (self.format, self.n):
            return kernel
        every = behind.warp_results
        rows = min(ASKED // (len(BORROWED) * self.format.row_bytes(behind.k)), behind.n // max(every, MOST_OF))
        return replace(kernel, asks=rows, asks_every=every, asks_of=behind.n)

    @property
    def borrowed(self) -> Mapping[str, str]:
        return BORROWED if self.asks else {}

    @property
    def asked(self) -> AskedRows:
        """What it asks for."""
        return AskedRows(self.asks, self.asks_every, self.asks_of, self.n, self.format)

    def signature(self) -> Signature:
        more: Signature = {"squares": write(F32, self.n // BLOCK), "gamma": read(F32, self.n, constant=True)}
        return super().signature() | more | (self.asked.signature() if self.asks else {})

    def _early(self, k: KernelBuilder, warp: Warp) -> list[Value | None]:
        """Where activations are staged at once, behind that, when the weights have come for the most part."""
        if self.asks:
            self.asked.write(k, self.launch().grid[0])
        return super()._early(k, warp)

    def for_result(self, k: KernelBuilder, row: Value) -> Element:
        element: Element = k.arg.y[row]
        return element

    def for_digits(self, k: KernelBuilder, row: Value) -> Element:
        element: Element = k.arg.gamma[row]
        return element

    def result(self, k: KernelBuilder, sums: list[Value], loaded: Value | None) -> Value:
        assert loaded is not None
        return loaded + sums[0]

    def quantised(self, k: KernelBuilder, row: Value, y: Value, loaded: Value | None, live: Value) -> Value:
        assert loaded is not None
        squares = group_squares(k, [y])
        with k.when(live & (k.lane == 0)):
            k.store(k.arg.squares[row // BLOCK], squares)
        return y * loaded

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        y = super().reference(**arguments)["y"]
        made = self.digits_of(y * arguments["gamma"].astype("f8"))
        return {"y": y, **made, "squares": exact_squares(y), **self.counters_again()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """y as in hw_dp4a_gemv_residual; squares and digits are those of any y that near, the latter of one more product."""
        y, bound = super().reference(**arguments)["y"], super().tolerance(**arguments)["y"]
        gamma = np.abs(arguments["gamma"].astype("f8"))
        of_product = bound * gamma + UNIT * (np.abs(y) + bound) * gamma + np.finfo(np.float32).tiny
        digits = self.digit_bounds(y * arguments["gamma"].astype("f8"), of_product)
        return {"y": bound, **digits, "squares": squares_bound(y, bound), **self.counters_again()}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        inputs = super().inputs(rng) | {"squares": np.full(self.n // BLOCK, np.nan, np.float32)}
        inputs |= {"gamma": rng.uniform(-0.5, 2.0, self.n).astype(np.float32)}
        return inputs | {name: self.format.random_blocks(rng, self.asks_of, self.n) for name in self.borrowed}

    def work(self) -> Work:
        """A product more for each digit's value, a product and an addition for each square."""
        others = super().work()
        return Work(flops=others.flops + 3 * self.n, bytes=others.bytes + F32.bytes * (self.n + self.n // BLOCK))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HwDp4aGemvResidualNormed]:
        three = fixed | {"digits": 3, "out_digits": 3}
        yield cls(k=max(fixed["format"].block, 3 * BLOCK), n=32, num_warps=2, **three)  # two blocks a group
        if fixed["format"].name == "Q4_K":
            yield cls(k=2048, n=96, num_warps=16, rows_per_warp=2, turns=2, **three)  # half of a block is past the end
            yield cls(k=18944, n=32, digits=1, out_digits=2, num_warps=2, rows_per_warp=1, **fixed)  # a loop
            yield cls(k=3584, n=64, num_warps=12, rows_per_warp=1, ring=2, **three)  # blocks that share groups
            yield cls(k=1536, n=64, digits=2, out_digits=1, num_warps=8, turns=2, **fixed)  # a partial step alone
        if fixed["format"].name == "Q8_0":
            yield cls(k=896, n=32, num_warps=4, rows_per_warp=1, turns=4, **three)  # a partial step after others
            yield cls(k=4096, n=64, rows_per_warp=1, asks=7, asks_every=8, asks_of=53, **three)
