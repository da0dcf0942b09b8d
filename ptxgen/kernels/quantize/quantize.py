"""`q8_quantize`, `q16_quantize` and `q24_quantize`: f32 activations to int8 planes; `write_planes` for the kernels that do it
to values of their own. What the planes mean is said in int8_planes.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST, arrays, quantize, unwritten
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32, S32, U32

THREADS = 128

# Values of a lane: one 16-byte load, one 4-byte store of planes.
LANE_VALUES = 4

LEAST_USUAL = (127 - 60) << 23  # 2^-60 as bits: so large a peak, over LARGEST, gives a scale of 2^-83 or more
LIFT = 64  # a power of two that what is smaller is multiplied by, and by which nothing is rounded
INFINITE = 0x7F800000  # as bits; those of NaN are larger


@register(count=LARGEST)
@dataclass(frozen=True)
class Quantize(KernelType):
    """Activations as int8 planes with a scale and an exact sum for every 32.

    x: f32[rows, n] -> digits: s8[rows, count, n], highest plane first; scales: f32[rows, n / 32]; sums: s32[rows, n / 32], the
    sums of the blocks' integers. q8: x ~ scale * a, a in -127..127. q16: x ~ scale * (256 a + b), in -32639..32639. q24:
    x ~ scale * (65536 a + 256 b + c), in -8355711..8355711. Each array is contiguous and 16-byte aligned; n is a multiple of
    32. A sum is at most 32 * 8355711, so it overflows for no input. For zeros, infinities, NaN and how far x is from what
    stands for it see int8_planes.quantize."""

    count: int = field(metadata=HIDDEN)
    n: int
    rows: int = 1

    family = "quantize"

    @property
    def name(self) -> str:
        return f"q{8 * self.count}_quantize"

    def __post_init__(self) -> None:
        require(self, "count", high=max(LARGEST))
        require(self, "n", multiple=BLOCK)
        require(self, "rows", high=MOST_ROWS)

    def signature(self) -> Signature:
        return {**arrays(self.rows, self.count, self.n, "out"), "x": read(F32, self.rows, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.n // (THREADS * LANE_VALUES)), self.rows), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        row, place = k.ctaid.y, k.ctaid.x * THREADS + k.tid.x
        last = self.n // LANE_VALUES - 1
        # Lanes past the end do the last lane's work again, because shuffles need them all.
        first = k.min(place, last) * LANE_VALUES
        xs = k.load_vector(k.arg.x[row, first], 4)
        write_planes(k, self.count, row, first, xs, place <= last)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return quantize(arguments["x"], self.count)._asdict()

    def tolerance(self, **_: Any) -> Mapping[str, float]:
        """Nothing but correctly rounded operations in a fixed order."""
        return {"digits": 0.0, "scales": 0.0, "sums": 0.0}

    def work(self) -> Work:
        size = self.rows * self.n
        return Work(flops=2 * size, bytes=size * (4 + self.count) + size // BLOCK * 8)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Normal activations, with one channel that is massive, a block of zeros and a block of the largest f16 wherever there
        is room."""
        x = rng.standard_normal((self.rows, self.n)).astype(np.float32)
        x[:, 0] = OUTLIER
        x[:, 32:64] = 65504.0
        x[:, 64:96] = 0.0
        return {**unwritten(self.rows, self.count, self.n), "x": x}

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[Quantize]:
        for n, rows in ((4096, 1), (576, 3), (32, 1), (14336, 2)):
            yield cls(n=n, rows=rows, **fixed)


def write_planes(
    k: KernelBuilder,
    count: int,
    row: Value | int,
    first: Value,
    xs: Sequence[Value],
    live: Value,
    prefix: str = "",
    factor: Value | None = None,
) -> None:
    """Write what stands for the values `first`, `first` + 1, ... of a row to k.arg.digits, scales and sums, where `live` holds;
    or to arguments whose names are these behind a prefix.

    xs: the lane's values, one or four of them, so that 32 or 8 lanes side by side have a block of 32, in all of which `live` is
    the same. All lanes of the warp must come here. Every kernel that makes planes makes them of `block_integers`, so the bits
    are the same. factor: the planes stand for so many times the values."""
    integers, scale, total = block_integers(k, count, xs)
    if factor is not None:
        scale = scale * factor
    with k.when(live):
        for plane, parts in enumerate(planes_of(integers, count)):
            place = getattr(k.arg, f"{prefix}digits")[row, plane, first]
            if len(parts) == 1:
                k.store(place, parts[0])
            else:
                k.store(replace(place, dtype=U32), packed(k, parts))
        with k.when((k.lane & (BLOCK // len(xs) - 1)) == 0):
            k.store(getattr(k.arg, f"{prefix}scales")[row, first // BLOCK], scale)
            k.store(getattr(k.arg, f"{prefix}sums")[row, first // BLOCK], total)


def block_integers(k: KernelBuilder, count: int, xs: Sequence[Value]) -> tuple[list[Value], Value, Value]:
    """The integers (s32) that stand for the lane's values with so many planes; the scale (f32) of the block of 32 that they
    and those of the lanes beside are, and the sum (s32) of its integers. All lanes of the warp must come here.

    Nothing here has a branch, as a division has one to its rare cases: behind it the assembler would write all that has a
    shuffle twice, and one warp that quantises alone waits for every instruction."""
    # As bits, because NaN is then the largest.
    peak = magnitude(k, xs[0])
    for x in xs[1:]:
        peak = k.max(peak, magnitude(k, x))
    alone = len(xs) == 1  # the block is a warp's
    peak = k.largest_integer(peak) if alone else k.warp_max(peak, width=BLOCK // len(xs))
    rare = peak < LEAST_USUAL  # what is so small is computed with larger by 2^64
    lift, drop = (k.select(rare, k.f32(2.0**power), 1.0) for power in (LIFT, -LIFT))
    found = _over_largest(k, k.bits(peak, F32) * lift, float(LARGEST[count])) * drop
    scale = k.select(peak < INFINITE, found, k.bits(peak, F32))
    divisor = scale * lift  # 2^-85 or more; 0, an infinity or NaN make quotients NaN, so integers 0
    inverse = k.select(peak < INFINITE, mathlib.reciprocal_of_normal(k, divisor), 0.0)
    integers = [_integer(k, mathlib.quotient(k, x * lift, divisor, inverse), LARGEST[count]) for x in xs]
    total = integers[0]
    for integer in integers[1:]:
        total = total + integer
    total = k.sum_of_integers(total) if alone else k.warp_sum(total, width=BLOCK // len(xs))
    return integers, scale, total


def _over_largest(k: KernelBuilder, x: Value, largest: float) -> Value:
    """x / largest, correctly rounded where it is normal: by all 2^23 significands of x, for each of LARGEST (tests)."""
    inverse = float(np.float32(1.0 / largest))
    quotient = x * inverse
    corrected: Value = k.fma(k.fma(-quotient, largest, x), inverse, quotient)
    return corrected


def _integer(k: KernelBuilder, ratio: Value, largest: int) -> Value:
    rounded = k.cvt(ratio, result=S32, rnd="rni")
    clamped: Value = k.max(k.min(rounded, largest), -largest)
    return clamped


def planes_of(integers: list[Value], count: int) -> list[list[Value]]:
    """The planes of all integers, the highest first. Each is the nearest to what is left, so that -128..127 holds it."""
    rest, digits = integers, []
    for _ in range(count - 1):
        above = [(integer + 128) >> 8 for integer in rest]
        digits.append([integer - (top << 8) for integer, top in zip(rest, above, strict=True)])
        rest = above
    return [rest, *reversed(digits)]


def magnitude(k: KernelBuilder, x: Value) -> Value:
    """|x| as the bits of an f32."""
    return k.bits(x, U32) & 0x7FFFFFFF


def packed(k: KernelBuilder, integers: list[Value]) -> Value:
    """The low bytes of four s32 in a u32, the first lowest."""
    a, b, c, d = (k.bits(integer, U32) for integer in integers)
    low: Value = k.prmt(a, b, 0x0040)
    high: Value = k.prmt(c, d, 0x0040)
    word: Value = k.prmt(low, high, 0x5410)
    return k.bits(word, U32)
