"""Arithmetic of f16, bf16 and their packed pairs: the rows of PTX ISA 9.7.4. Conversions are in convert.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.parts import FTZ, RELU, RN, SAT, by_half, float_op
from ptxgen.isa.rows.floating import extreme
from ptxgen.isa.units import Unit
from ptxgen.types import F32

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.HALF)

F16S = ("f16", "f16x2")
BF16S = ("bf16", "bf16x2")
RND = ("rn",)
HOPPER: table.Need = (90, (7, 8))
f16_row = partial(instruction, type=F16S, d="{type}", a="{type}")
bf16_row = partial(instruction, type=BF16S, d="{type}", a="{type}")
EXTREME_NEEDS: dict[str, table.Need] = {"xorsign": (86, (7, 2))}


@f16_row("add.{rnd?}.{ftz?}.{sat?}.{type}", rnd=RND, ftz=FTZ, sat=SAT, b="{type}", name="add", defaults=RN, section="9.7.4.1")
@bf16_row("add.{rnd?}.{type}", rnd=RND, b="{type}", name="add", defaults=RN, sm=90, ptx=(7, 8), section="9.7.4.1")
def add_half(v: Algebra, a: Number, b: Number, type: str, rnd: str = "rn", ftz: str = "", sat: str = "") -> Number:
    """d = a + b, to nearest even, half by half."""
    return by_half(v, type, lambda a, b: float_op(v, lambda a, b: a + b, a, b, ftz=ftz, sat=sat), a, b)


@f16_row("sub.{rnd?}.{ftz?}.{sat?}.{type}", rnd=RND, ftz=FTZ, sat=SAT, b="{type}", name="sub", defaults=RN, section="9.7.4.2")
@bf16_row("sub.{rnd?}.{type}", rnd=RND, b="{type}", name="sub", defaults=RN, sm=90, ptx=(7, 8), section="9.7.4.2")
def sub_half(v: Algebra, a: Number, b: Number, type: str, rnd: str = "rn", ftz: str = "", sat: str = "") -> Number:
    """d = a - b, to nearest even, half by half."""
    return by_half(v, type, lambda a, b: float_op(v, lambda a, b: a - b, a, b, ftz=ftz, sat=sat), a, b)


@f16_row("mul.{rnd?}.{ftz?}.{sat?}.{type}", rnd=RND, ftz=FTZ, sat=SAT, b="{type}", name="mul", defaults=RN, section="9.7.4.3")
@bf16_row("mul.{rnd?}.{type}", rnd=RND, b="{type}", name="mul", defaults=RN, sm=90, ptx=(7, 8), section="9.7.4.3")
def mul_half(v: Algebra, a: Number, b: Number, type: str, rnd: str = "rn", ftz: str = "", sat: str = "") -> Number:
    """d = a * b, to nearest even, half by half."""
    return by_half(v, type, lambda a, b: float_op(v, lambda a, b: a * b, a, b, ftz=ftz, sat=sat), a, b)


def _sat_or_relu(modifiers: Mapping[str, str]) -> str:
    return "sat and relu do not go together" if "sat" in modifiers and "relu" in modifiers else ""


@f16_row(
    "fma.{rnd}.{ftz?}.{sat?}.{relu?}.{type}",
    name="fma",
    defaults=RN,
    needs={"relu": (80, (7, 0))},
    rule=_sat_or_relu,
    section="9.7.4.4",
)
@modifiers(rnd=RND, ftz=FTZ, sat=SAT, relu=RELU)
@operands(b="{type}", c="{type}")
@bf16_row("fma.{rnd}.{relu?}.{type}", b="{type}", c="{type}", name="fma", defaults=RN, sm=80, ptx=(7, 0), section="9.7.4.4")
@modifiers(rnd=RND, relu=RELU)
def fma_half(
    v: Algebra, a: Number, b: Number, c: Number, type: str, rnd: str, ftz: str = "", sat: str = "", relu: str = ""
) -> Number:
    """d = a * b + c with one rounding, half by half."""
    return by_half(v, type, lambda a, b, c: float_op(v, v.fma, a, b, c, ftz=ftz, sat=sat, relu=relu), a, b, c)


@f16_row("neg.{ftz?}.{type}", ftz=FTZ, name="neg", section="9.7.4.5")
@bf16_row("neg.{type}", name="neg", sm=80, ptx=(7, 0), section="9.7.4.5")
def neg_half(v: Algebra, a: Number, type: str, ftz: str = "") -> Number:
    """a with its sign turned, half by half; of a NaN the canonical one."""
    return by_half(v, type, lambda a: v.canonical(-(v.flush(a) if ftz else a)), a)


@f16_row("abs.{ftz?}.{type}", ftz=FTZ, name="abs", ptx=(6, 5), section="9.7.4.6")
@bf16_row("abs.{type}", name="abs", sm=80, ptx=(7, 0), section="9.7.4.6")
def abs_half(v: Algebra, a: Number, type: str, ftz: str = "") -> Number:
    """a without its sign, half by half; of a NaN the canonical one."""
    return by_half(v, type, lambda a: v.canonical(v.abs(v.flush(a) if ftz else a)), a)


@f16_row("min.{ftz?}.{nan?}.{xorsign?}.{type}", name="min", sm=80, ptx=(7, 0), needs=EXTREME_NEEDS, section="9.7.4.7")
@modifiers(ftz=FTZ, nan=("NaN",), xorsign=("xorsign.abs",))
@operands(b="{type}")
@bf16_row("min.{nan?}.{xorsign?}.{type}", b="{type}", name="min", sm=80, ptx=(7, 0), needs=EXTREME_NEEDS, section="9.7.4.7")
@modifiers(nan=("NaN",), xorsign=("xorsign.abs",))
def min_half(v: Algebra, a: Number, b: Number, type: str, ftz: str = "", nan: str = "", xorsign: str = "") -> Number:
    """The smaller, half by half; -0 < +0; a NaN loses unless `NaN` is asked for."""
    return by_half(v, type, lambda a, b: extreme(v, "min", a, b, ftz=ftz, nan=nan, xorsign=xorsign), a, b)


@f16_row("max.{ftz?}.{nan?}.{xorsign?}.{type}", name="max", sm=80, ptx=(7, 0), needs=EXTREME_NEEDS, section="9.7.4.8")
@modifiers(ftz=FTZ, nan=("NaN",), xorsign=("xorsign.abs",))
@operands(b="{type}")
@bf16_row("max.{nan?}.{xorsign?}.{type}", b="{type}", name="max", sm=80, ptx=(7, 0), needs=EXTREME_NEEDS, section="9.7.4.8")
@modifiers(nan=("NaN",), xorsign=("xorsign.abs",))
def max_half(v: Algebra, a: Number, b: Number, type: str, ftz: str = "", nan: str = "", xorsign: str = "") -> Number:
    """The larger, half by half; -0 < +0; a NaN loses unless `NaN` is asked for."""
    return by_half(v, type, lambda a, b: extreme(v, "max", a, b, ftz=ftz, nan=nan, xorsign=xorsign), a, b)


@instruction(
    "tanh.approx.{type}", name="tanh_approx", ptx=(7, 0), needs={"type=bf16": HOPPER, "type=bf16x2": HOPPER}, section="9.7.4.9"
)
@modifiers(type=(*F16S, *BF16S))
@operands(d="{type}", a="{type}")
def tanh_half(v: Algebra, a: Number, type: str) -> Number:
    """tanh(a), within 2^-10.987 for f16 and 2^-8 for bf16, half by half."""
    return by_half(v, type, lambda a: v.canonical(v.convert(v.approx("tanh", v.convert(a, F32)), a.type)), a)


@f16_row("ex2.approx.{type}", name="ex2_approx", ptx=(7, 0), section="9.7.4.10")
@bf16_row("ex2.approx.ftz.{type}", name="ex2_approx", sm=90, ptx=(7, 8), section="9.7.4.10")
def ex2_half(v: Algebra, a: Number, type: str) -> Number:
    """2 ** a, within 2^-9.9 for f16 and 2^-7 for bf16, half by half."""
    return by_half(v, type, lambda a: v.canonical(v.convert(v.approx("ex2", v.convert(a, F32)), a.type)), a)
