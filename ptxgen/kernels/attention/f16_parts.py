"""Numbers for tensor cores that multiply f16: an f32 as the sum of two f16, and what such a product is off by.

x = high + low, high the f16 nearest to x and low the f16 nearest to what is left. A product of two such numbers is high high' +
high low' + low high'; the fourth is left out. All may be added to one sum, for a product of two f16 is exact in f32. The low
part of a small number has few bits: it is right to 2^-25. (Times 2^11, as Ootomo and Yokota do it, 2022, arXiv:2203.03341, low
parts would have all their bits, but need sums of their own and a product for each value: a fifth of an attention kernel.) What
is larger than 65504, the largest f16, becomes infinite, and with two parts NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.types import B32, F16

PARTS_ALLOWED: Final = (1, 2)


class F16Parts(NamedTuple):
    """Registers of two f16 each, the first lower: their high parts, and their low parts, if the numbers have two."""

    high: Value
    low: Value | None


def split(k: KernelBuilder, pair: Sequence[Value], parts: int) -> F16Parts:
    """Two f32 as one or two parts."""
    high = k.op("cvt", pair[1], pair[0], to="f16x2")
    if parts == 1:
        return F16Parts(k.bits(high, B32), None)
    rest = [x - k.f32(half) for x, half in zip(pair, _unpacked(k, high), strict=True)]
    return F16Parts(k.bits(high, B32), k.bits(k.op("cvt", rest[1], rest[0], to="f16x2"), B32))


def relative_error(parts: int) -> float:
    """How far the parts of a number may be off, relative to it; half an ulp of f16 for one, the square of that for two."""
    return 2.0 ** (-11 * parts)


LEAST_ERROR: Final = 2.0**-25
"""The same of small numbers, absolute: half of the least subnormal f16."""


def _unpacked(k: KernelBuilder, pair: Value) -> tuple[Value, ...]:
    return k.write("mov", [k.bits(pair, B32)], result=F16)
