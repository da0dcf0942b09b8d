"""Comparison and selection: the rows of PTX ISA 9.7.6 and 9.7.7."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.parts import BITS, FTZ, INTEGERS, SIGNED, UNSIGNED, by_half, dtype
from ptxgen.isa.units import Unit
from ptxgen.types import F32, U32

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.ALU)

EQUALITY = ("eq", "ne")
SIGNED_ORDER = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED_ORDER = (*SIGNED_ORDER, "lo", "ls", "hi", "hs")
FLOAT_ORDER = (*SIGNED_ORDER, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
BOOLEANS = ("and", "or", "xor")
HALF_NEEDS: dict[str, table.Need] = {"type=bf16": (90, (7, 8)), "type=bf16x2": (90, (7, 8))}


def compare(v: Algebra, cmp: str, a: Number, b: Number) -> Number:
    """The predicate `a cmp b`; a trailing u makes it true when either is NaN (PTX ISA 9.3.1)."""
    if cmp in ("num", "nan"):
        nan = v.isnan(a) | v.isnan(b)
        return nan if cmp == "nan" else ~nan
    plain = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(cmp, cmp[:2])
    relations = {"eq": a.__eq__, "ne": a.__ne__, "lt": a.__lt__, "le": a.__le__, "gt": a.__gt__, "ge": a.__ge__}
    holds = relations[plain](b)
    return holds | v.isnan(a) | v.isnan(b) if len(cmp) == 3 else holds


def combine(bool: str, p: Number, c: Number | None) -> Number:
    """`p bool c`, or p where there is no third operand."""
    if c is None:
        return p
    return {"and": p & c, "or": p | c, "xor": p ^ c}[bool]


def _no_ftz_on_f64(modifiers: Mapping[str, str]) -> str:
    type = modifiers.get("type") or modifiers["of"]
    return f"ftz is not for {type}" if "ftz" in modifiers and type in ("f64", "bf16", "bf16x2") else ""


SET_RESULTS = ("u32", "s32", "f32")
setp_row = partial(instruction, d="pred", dp="pred?", a="{type}", b="{type}", section="9.7.6.2")
set_row = partial(instruction, to=SET_RESULTS, d="{to}", a="{of}", b="{of}", section="9.7.6.1")


@setp_row("setp.{cmp}.{type}", cmp=UNSIGNED_ORDER, type=UNSIGNED)
@setp_row("setp.{cmp}.{type}", cmp=SIGNED_ORDER, type=SIGNED)
@setp_row("setp.{cmp}.{ftz?}.{type}", cmp=FLOAT_ORDER, ftz=FTZ, type=("f32", "f64"), rule=_no_ftz_on_f64)
@setp_row("setp.{cmp}.{type}", cmp=EQUALITY, type=BITS)
@setp_row("setp.{cmp}.{bool}.{type}", cmp=UNSIGNED_ORDER, bool=BOOLEANS, type=UNSIGNED, c="pred")
@setp_row("setp.{cmp}.{bool}.{type}", cmp=SIGNED_ORDER, bool=BOOLEANS, type=SIGNED, c="pred")
@setp_row("setp.{cmp}.{bool}.{ftz?}.{type}", c="pred", rule=_no_ftz_on_f64)
@modifiers(cmp=FLOAT_ORDER, bool=BOOLEANS, ftz=FTZ, type=("f32", "f64"))
@setp_row("setp.{cmp}.{bool}.{type}", cmp=EQUALITY, bool=BOOLEANS, type=BITS, c="pred")
def setp(
    v: Algebra, a: Number, b: Number, c: Number | None = None, *, cmp: str, type: str, bool: str = "", ftz: str = ""
) -> tuple[Number, Number]:
    """Compare; the second destination gets the opposite. With a third operand both are combined with it."""
    if ftz:
        a, b = v.flush(a), v.flush(b)
    holds = compare(v, cmp, a, b)
    return combine(bool, holds, c), combine(bool, ~holds, c)


@instruction("setp.{cmp}.{ftz?}.{type}", needs=HALF_NEEDS, rule=_no_ftz_on_f64, name="setp", section="9.7.7.2")
@modifiers(cmp=FLOAT_ORDER, ftz=FTZ, type=("f16", "bf16"))
@operands(d="pred", a="{type}", b="{type}")
@instruction("setp.{cmp}.{bool}.{ftz?}.{type}", needs=HALF_NEEDS, rule=_no_ftz_on_f64, name="setp", section="9.7.7.2")
@modifiers(cmp=FLOAT_ORDER, bool=BOOLEANS, ftz=FTZ, type=("f16", "bf16"))
@operands(d="pred", a="{type}", b="{type}", c="pred")
def setp_half(
    v: Algebra, a: Number, b: Number, c: Number | None = None, *, cmp: str, type: str, bool: str = "", ftz: str = ""
) -> Number:
    """Compare; with a third operand, combined with it."""
    if ftz:
        a, b = v.flush(a), v.flush(b)
    return combine(bool, compare(v, cmp, a, b), c)


@instruction("setp.{cmp}.{ftz?}.{type}", needs=HALF_NEEDS, rule=_no_ftz_on_f64, name="setp", section="9.7.7.2")
@modifiers(cmp=FLOAT_ORDER, ftz=FTZ, type=("f16x2", "bf16x2"))
@operands(d="pred", dp="pred", a="{type}", b="{type}")
def setp_packed(v: Algebra, a: Number, b: Number, cmp: str, type: str, ftz: str = "") -> tuple[Number, Number]:
    """Compare the low halves into the first destination and the high halves into the second."""
    if ftz:
        a, b = by_half(v, type, v.flush, a), by_half(v, type, v.flush, b)
    (a_low, a_high), (b_low, b_high) = v.lanes_of(a), v.lanes_of(b)
    return compare(v, cmp, a_low, b_low), compare(v, cmp, a_high, b_high)


@set_row("set.{cmp}.{to}.{of}", cmp=UNSIGNED_ORDER, of=UNSIGNED)
@set_row("set.{cmp}.{to}.{of}", cmp=SIGNED_ORDER, of=SIGNED)
@set_row("set.{cmp}.{ftz?}.{to}.{of}", cmp=FLOAT_ORDER, ftz=FTZ, of=("f32", "f64"), rule=_no_ftz_on_f64)
@set_row("set.{cmp}.{to}.{of}", cmp=EQUALITY, of=BITS)
@set_row("set.{cmp}.{bool}.{to}.{of}", cmp=UNSIGNED_ORDER, bool=BOOLEANS, of=UNSIGNED, c="pred")
@set_row("set.{cmp}.{bool}.{to}.{of}", cmp=SIGNED_ORDER, bool=BOOLEANS, of=SIGNED, c="pred")
@set_row("set.{cmp}.{bool}.{ftz?}.{to}.{of}", c="pred", rule=_no_ftz_on_f64)
@modifiers(cmp=FLOAT_ORDER, bool=BOOLEANS, ftz=FTZ, of=("f32", "f64"))
def set_(
    v: Algebra, a: Number, b: Number, c: Number | None = None, *, cmp: str, to: str, of: str, bool: str = "", ftz: str = ""
) -> Number:
    """Compare, giving all ones (1.0 for f32) or zero."""
    if ftz:
        a, b = v.flush(a), v.flush(b)
    holds = combine(bool, compare(v, cmp, a, b), c)
    if to == "f32":
        return v.select(holds, v.const(1.0, F32), v.const(0.0, F32))
    return v.bits(v.select(holds, v.const(0xFFFFFFFF, U32), v.const(0, U32)), dtype(to))


def _same_half(modifiers: Mapping[str, str]) -> str:
    if modifiers["to"] != modifiers["of"]:
        return f"a comparison of {modifiers['of']} gives {modifiers['of']}"
    return _no_ftz_on_f64(modifiers)


HALVES = ("f16", "f16x2", "bf16", "bf16x2")


@instruction(
    "set.{cmp}.{ftz?}.{to}.{of}",
    name="set",
    needs={"to=bf16": (90, (7, 8)), "to=bf16x2": (90, (7, 8))},
    rule=_same_half,
    section="9.7.7.1",
)
@modifiers(cmp=FLOAT_ORDER, ftz=FTZ, to=HALVES, of=HALVES)
@operands(d="{to}", a="{of}", b="{of}")
def set_half(v: Algebra, a: Number, b: Number, cmp: str, to: str, of: str, ftz: str = "") -> Number:
    """Compare, giving 1.0 or 0, half by half."""

    def one(a: Number, b: Number) -> Number:
        if ftz:
            a, b = v.flush(a), v.flush(b)
        return v.select(compare(v, cmp, a, b), v.const(1.0, a.type), v.const(0.0, a.type))

    return by_half(v, of, one, a, b)


@instruction("selp.{type}", d="{type}", a="{type}", b="{type}", c="pred", section="9.7.6.3")
@modifiers(type=(*INTEGERS, "f32", "f64", *BITS))
def selp(v: Algebra, a: Number, b: Number, c: Number, type: str) -> Number:
    """a where the predicate c holds, else b."""
    return v.select(c, a, b)


@instruction("slct.{type}.s32", d="{type}", a="{type}", b="{type}", c="s32", section="9.7.6.4")
@modifiers(type=(*INTEGERS, "f32", "f64", *BITS))
@instruction("slct.{ftz?}.{type}.f32", d="{type}", a="{type}", b="{type}", c="f32", section="9.7.6.4")
@modifiers(ftz=FTZ, type=(*INTEGERS, "f32", "f64", *BITS))
def slct(v: Algebra, a: Number, b: Number, c: Number, type: str, ftz: str = "") -> Number:
    """a where c >= 0 (-0 is, NaN is not), else b."""
    if ftz:
        c = v.flush(c)
    return v.select(c >= 0, a, b)
