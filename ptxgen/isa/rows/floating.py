"""Floating-point arithmetic of f32 and f64, correctly rounded: the rows of PTX ISA 9.7.3 but the approximations
(approximate.py)."""

from __future__ import annotations

from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers
from ptxgen.isa.parts import FTZ, RN, ROUNDINGS, SAT, dtype, float_op
from ptxgen.isa.units import Unit

any_float = partial(table.instruction, effect=Effect.NONE, unit=Unit.ALU)
f32 = partial(table.instruction, effect=Effect.NONE, unit=Unit.FMA, canonical_nan=True, d="f32", a="f32")
f64 = partial(table.instruction, effect=Effect.NONE, unit=Unit.DOUBLE, d="f64", a="f64")  # its NaN keeps its payload

NAN_NEEDS: dict[str, table.Need] = {"nan": (80, (7, 0)), "xorsign": (86, (7, 2))}
TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@any_float("testp.{test}.{type}", test=TESTS, type=("f32", "f64"), d="pred", a="{type}", section="9.7.3.1")
def testp(v: Algebra, a: Number, test: str, type: str) -> Number:
    """Whether a is of a kind: zero is `normal` and not `subnormal`, infinity neither; `number` is anything but NaN."""
    wide = type == "f64"
    word = v.bits(a, dtype("u64" if wide else "u32"))
    exponent = word & (0x7FF0000000000000 if wide else 0x7F800000)
    fraction = word & (0x000FFFFFFFFFFFFF if wide else 0x007FFFFF)
    top = exponent == (0x7FF0000000000000 if wide else 0x7F800000)
    return {
        "finite": ~top,
        "infinite": top & (fraction == 0),
        "number": ~(top & (fraction != 0)),
        "notanumber": top & (fraction != 0),
        "normal": ~top & ((exponent != 0) | (fraction == 0)),
        "subnormal": (exponent == 0) & (fraction != 0),
    }[test]


@any_float("copysign.{type}", type=("f32", "f64"), d="{type}", a="{type}", b="{type}", section="9.7.3.2")
def copysign(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """b with the sign of a."""
    integer = dtype("u64" if type == "f64" else "u32")
    sign = 1 << integer.bits - 1
    return v.bits((v.bits(a, integer) & sign) | (v.bits(b, integer) & (sign - 1)), a.type)


@f64("add.{rnd?}.f64", rnd=ROUNDINGS, b="f64", name="add", defaults=RN, section="9.7.3.3")
@f32("add.{rnd?}.{ftz?}.{sat?}.f32", rnd=ROUNDINGS, ftz=FTZ, sat=SAT, b="f32", name="add", defaults=RN, section="9.7.3.3")
def add_float(v: Algebra, a: Number, b: Number, rnd: str = "rn", ftz: str = "", sat: str = "") -> Number:
    """d = a + b, rounded by `rnd`; without it ptxas may contract it with a product."""
    return float_op(v, lambda a, b: a + b, a, b, rnd=rnd, ftz=ftz, sat=sat)


@f64("sub.{rnd?}.f64", rnd=ROUNDINGS, b="f64", name="sub", defaults=RN, section="9.7.3.4")
@f32("sub.{rnd?}.{ftz?}.{sat?}.f32", rnd=ROUNDINGS, ftz=FTZ, sat=SAT, b="f32", name="sub", defaults=RN, section="9.7.3.4")
def sub_float(v: Algebra, a: Number, b: Number, rnd: str = "rn", ftz: str = "", sat: str = "") -> Number:
    """d = a - b, rounded by `rnd`; without it ptxas may contract it with a product."""
    return float_op(v, lambda a, b: a - b, a, b, rnd=rnd, ftz=ftz, sat=sat)


@f64("mul.{rnd?}.f64", rnd=ROUNDINGS, b="f64", name="mul", defaults=RN, section="9.7.3.5")
@f32("mul.{rnd?}.{ftz?}.{sat?}.f32", rnd=ROUNDINGS, ftz=FTZ, sat=SAT, b="f32", name="mul", defaults=RN, section="9.7.3.5")
def mul_float(v: Algebra, a: Number, b: Number, rnd: str = "rn", ftz: str = "", sat: str = "") -> Number:
    """d = a * b, rounded by `rnd`; without it ptxas may contract it with a sum."""
    return float_op(v, lambda a, b: a * b, a, b, rnd=rnd, ftz=ftz, sat=sat)


@f64("fma.{rnd}.f64", rnd=ROUNDINGS, b="f64", c="f64", name="fma", defaults=RN, section="9.7.3.6")
@f64("mad.{rnd}.f64", rnd=ROUNDINGS, b="f64", c="f64", name="mad", defaults=RN, section="9.7.3.7")
@f32("fma.{rnd}.{ftz?}.{sat?}.f32", b="f32", c="f32", name="fma", defaults=RN, section="9.7.3.6")
@modifiers(rnd=ROUNDINGS, ftz=FTZ, sat=SAT)
@f32("mad.{rnd}.{ftz?}.{sat?}.f32", b="f32", c="f32", name="mad", defaults=RN, section="9.7.3.7")
@modifiers(rnd=ROUNDINGS, ftz=FTZ, sat=SAT)
def fma_float(v: Algebra, a: Number, b: Number, c: Number, rnd: str, ftz: str = "", sat: str = "") -> Number:
    """d = a * b + c with one rounding."""
    return float_op(v, v.fma, a, b, c, rnd=rnd, ftz=ftz, sat=sat)


@f64("div.{rnd}.f64", rnd=ROUNDINGS, b="f64", name="div", defaults=RN, unit=Unit.SPECIAL, section="9.7.3.8")
@f32("div.{rnd}.{ftz?}.f32", rnd=ROUNDINGS, ftz=FTZ, b="f32", name="div", defaults=RN, unit=Unit.SPECIAL, section="9.7.3.8")
def div_float(v: Algebra, a: Number, b: Number, rnd: str, ftz: str = "") -> Number:
    """d = a / b, rounded as `rnd` says."""
    return float_op(v, lambda a, b: a / b, a, b, rnd=rnd, ftz=ftz)


@f64("rcp.{rnd}.f64", rnd=ROUNDINGS, name="rcp", defaults=RN, unit=Unit.SPECIAL, section="9.7.3.13")
@f32("rcp.{rnd}.{ftz?}.f32", rnd=ROUNDINGS, ftz=FTZ, name="rcp", defaults=RN, unit=Unit.SPECIAL, section="9.7.3.13")
def rcp_float(v: Algebra, a: Number, rnd: str, ftz: str = "") -> Number:
    """d = 1 / a, rounded as `rnd` says."""
    return float_op(v, lambda a: v.const(1.0, a.type) / a, a, rnd=rnd, ftz=ftz)


@f64("sqrt.{rnd}.f64", rnd=ROUNDINGS, name="sqrt", defaults=RN, unit=Unit.SPECIAL, section="9.7.3.15")
@f32("sqrt.{rnd}.{ftz?}.f32", rnd=ROUNDINGS, ftz=FTZ, name="sqrt", defaults=RN, unit=Unit.SPECIAL, section="9.7.3.15")
def sqrt_float(v: Algebra, a: Number, rnd: str, ftz: str = "") -> Number:
    """The square root, rounded as `rnd` says."""
    return float_op(v, v.sqrt, a, rnd=rnd, ftz=ftz)


@f32("abs.{ftz?}.f32", unit=Unit.ALU, ftz=FTZ, name="abs", section="9.7.3.9")
def abs_f32(v: Algebra, a: Number, ftz: str = "") -> Number:
    """a without its sign; of a NaN the canonical one (as GPUs do; the ISA leaves it open)."""
    return v.canonical(v.abs(v.flush(a) if ftz else a))


@f32("neg.{ftz?}.f32", unit=Unit.ALU, ftz=FTZ, name="neg", section="9.7.3.10")
def neg_f32(v: Algebra, a: Number, ftz: str = "") -> Number:
    """a with its sign turned; of a NaN the canonical one (as GPUs do; the ISA leaves it open)."""
    return v.canonical(-(v.flush(a) if ftz else a))


def extreme(v: Algebra, which: str, a: Number, b: Number, *, ftz: str = "", nan: str = "", xorsign: str = "") -> Number:
    """min or max: a NaN loses, or wins with `nan`; `xorsign.abs` compares magnitudes and multiplies the signs, save of a result
    that is NaN."""
    if ftz:
        a, b = v.flush(a), v.flush(b)
    integer = dtype(f"u{a.type.bits}")
    sign = (v.bits(a, integer) ^ v.bits(b, integer)) & (1 << integer.bits - 1)
    either = v.isnan(a) | v.isnan(b)
    if xorsign:
        a, b = v.abs(a), v.abs(b)
    d = v.min(a, b) if which == "min" else v.max(a, b)
    if nan:
        d = v.select(either, v.const(float("nan"), a.type), d)
    d = v.canonical(d)
    if xorsign:
        d = v.select(v.isnan(d), d, v.bits(v.bits(d, integer) | sign, a.type))
    return d


@f32("min.{ftz?}.{nan?}.{xorsign?}.f32", unit=Unit.ALU, b="f32", name="min", needs=NAN_NEEDS, section="9.7.3.11")
@modifiers(ftz=FTZ, nan=("NaN",), xorsign=("xorsign.abs",))
def min_f32(v: Algebra, a: Number, b: Number, ftz: str = "", nan: str = "", xorsign: str = "") -> Number:
    """The smaller; -0 < +0; a NaN loses unless `NaN` is asked for."""
    return extreme(v, "min", a, b, ftz=ftz, nan=nan, xorsign=xorsign)


@f32("max.{ftz?}.{nan?}.{xorsign?}.f32", unit=Unit.ALU, b="f32", name="max", needs=NAN_NEEDS, section="9.7.3.12")
@modifiers(ftz=FTZ, nan=("NaN",), xorsign=("xorsign.abs",))
def max_f32(v: Algebra, a: Number, b: Number, ftz: str = "", nan: str = "", xorsign: str = "") -> Number:
    """The larger; -0 < +0; a NaN loses unless `NaN` is asked for."""
    return extreme(v, "max", a, b, ftz=ftz, nan=nan, xorsign=xorsign)


@f64("abs.f64", unit=Unit.ALU, name="abs", section="9.7.3.9")
def abs_f64(v: Algebra, a: Number) -> Number:
    """a without its sign."""
    return v.abs(a)


@f64("neg.f64", unit=Unit.ALU, name="neg", section="9.7.3.10")
def neg_f64(v: Algebra, a: Number) -> Number:
    """a with its sign turned."""
    return -a


@f64("min.f64", unit=Unit.ALU, b="f64", name="min", section="9.7.3.11")
def min_f64(v: Algebra, a: Number, b: Number) -> Number:
    """The smaller; -0 < +0; a NaN loses."""
    return v.min(a, b)


@f64("max.f64", unit=Unit.ALU, b="f64", name="max", section="9.7.3.12")
def max_f64(v: Algebra, a: Number, b: Number) -> Number:
    """The larger; -0 < +0; a NaN loses."""
    return v.max(a, b)
