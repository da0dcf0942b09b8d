"""Approximations of PTX ISA 9.7.3: instructions whose result the ISA bounds but does not fix. Default kernels use none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.parts import FTZ
from ptxgen.isa.units import Unit
from ptxgen.types import F64, U64

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.SPECIAL, canonical_nan=True)

LARGE = 2.0**126


def approximation(v: Algebra, function: str, a: Number, ftz: str) -> Number:
    """`function` of f32 within its error, with the flushing of `.ftz`."""
    d = v.approx(function, v.flush(a) if ftz else a)
    return v.canonical(v.flush(d) if ftz else d)


@instruction("div.approx.{ftz?}.f32", ftz=FTZ, d="f32", a="f32", b="f32", section="9.7.3.8")
def div_approx(v: Algebra, a: Number, b: Number, ftz: str = "") -> Number:
    """a / b within 2 ulp; for 2^126 < |b| the result is 0 (NaN if a is infinite)."""
    if ftz:
        a, b = v.flush(a), v.flush(b)
    huge = (v.abs(b) > LARGE) & (v.abs(b) != float("inf"))
    d = v.select(huge, a * (b * 0.0), a / b)
    return v.canonical(v.flush(d) if ftz else d)


@instruction("div.full.{ftz?}.f32", ftz=FTZ, d="f32", a="f32", b="f32", section="9.7.3.8")
def div_full(v: Algebra, a: Number, b: Number, ftz: str = "") -> Number:
    """a / b within 2 ulp over the whole range."""
    if ftz:
        a, b = v.flush(a), v.flush(b)
    d = a / b
    return v.canonical(v.flush(d) if ftz else d)


APPROXIMATIONS = (
    ("rcp", "9.7.3.13", "1 / a within 1 ulp."),
    ("sqrt", "9.7.3.15", "The square root within a relative error of 2^-23."),
    ("rsqrt", "9.7.3.16", "1 / sqrt(a) within a relative error of 2^-22.9."),
    ("sin", "9.7.3.18", "sin(a), within 2^-20.5 for |a| <= 2 pi."),
    ("cos", "9.7.3.19", "cos(a), within 2^-20.5 for |a| <= 2 pi."),
    ("lg2", "9.7.3.20", "log2(a), within 2^-22 (absolute between 0.5 and 2, relative elsewhere)."),
    ("ex2", "9.7.3.21", "2 ** a within 2 ulp."),
)


def _approximation(function: str, section: str, summary: str) -> None:
    def meaning(v: Algebra, a: Number, ftz: str = "") -> Number:
        return approximation(v, function, a, ftz)

    meaning.__doc__ = summary
    row = instruction(f"{function}.approx.{{ftz?}}.f32", ftz=FTZ, d="f32", a="f32", name=f"{function}_approx", section=section)
    row(meaning)


for _row in APPROXIMATIONS:
    _approximation(*_row)


@instruction("rsqrt.approx.f64", d="f64", a="f64", name="rsqrt_approx", canonical_nan=False, section="9.7.3.16")
def rsqrt_approx_f64(v: Algebra, a: Number) -> Number:
    """1 / sqrt(a); the GPU gives it within about 2^-21 of its value."""
    return v.const(1.0, F64) / v.sqrt(a)


def _upper(v: Algebra, a: Number) -> Number:
    """The number that the upper 32 bits of an f64 spell; a subnormal one becomes zero of its sign."""
    word = v.bits(a, U64)
    small = (word & 0x7FF0000000000000) == 0
    return v.bits(v.select(small, word & 0x8000000000000000, word & 0xFFFFFFFF00000000), F64)


def _gross(v: Algebra, work: Callable[[Number], Number], a: Number) -> Number:
    """`work` on the upper 32 bits of a, rounded to the upper 32 bits of an f64."""
    upper = _upper(v, a)
    d = v.bits(work(upper), U64)
    nan = v.isnan(upper)  # a NaN whose upper half is that of an infinity is taken for one (seen on sm_90)
    rounded = v.select((d & 0x7FF0000000000000) == 0x7FF0000000000000, d, d + 0x80000000)
    return v.select(nan, v.bits(v.const(0x7FFFFFFF00000000, U64), F64), _upper(v, v.bits(rounded, F64)))


@instruction("rcp.approx.ftz.f64", d="f64", a="f64", name="rcp_approx_ftz", canonical_nan=False, section="9.7.3.14")
def rcp_approx_ftz_f64(v: Algebra, a: Number) -> Number:
    """1 / a of the upper 32 bits of a, in those of d, whose others are 0; on a GPU within about 2^-20. Subnormals are zero."""
    return _gross(v, lambda x: v.const(1.0, F64) / x, a)


@instruction("rsqrt.approx.ftz.f64", d="f64", a="f64", name="rsqrt_approx_ftz", canonical_nan=False, section="9.7.3.17")
def rsqrt_approx_ftz_f64(v: Algebra, a: Number) -> Number:
    """1 / sqrt(a) of the upper 32 bits of a, in those of d, whose others are 0; on a GPU within about 2^-20. Subnormal operands
    are zero."""
    return _gross(v, lambda x: v.const(1.0, F64) / v.sqrt(x), a)


@instruction("tanh.approx.f32", d="f32", a="f32", ptx=(7, 0), section="9.7.3.22")
def tanh_approx(v: Algebra, a: Number) -> Number:
    """tanh(a) within a relative error of 2^-11."""
    return approximation(v, "tanh", a, "")
