"""Conversion between number types: the rows of `cvt`, PTX ISA 9.7.9.21.

Which NaN comes out of a NaN the ISA leaves open; here it is what sm_90 gives: the canonical one, but where nothing is
computed (a move or a shift) its own bits, and from f64 its sign and upper bits, quiet.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.parts import (
    FTZ,
    INTEGER_ROUNDINGS,
    RELU,
    RN,
    ROUNDINGS,
    SAT,
    dtype,
    flushed_result,
    rectify,
    saturate,
    together,
)
from ptxgen.isa.units import Unit
from ptxgen.types import B16, B32, BF16X2, F16, F16X2, F32, F64, U16, U32, DType

INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
FLOATS = ("f16", "f32", "f64", "bf16")
instruction = partial(table.instruction, name="cvt", effect=Effect.NONE, unit=Unit.CONVERT, section="9.7.9.21")
BF16_NEEDS: dict[str, table.Need] = {"to=bf16": (90, (7, 8)), "of=bf16": (90, (7, 8))}


def _range(type: DType) -> tuple[int, int]:
    return (-(1 << type.bits - 1), (1 << type.bits - 1) - 1) if type.is_signed else (0, (1 << type.bits) - 1)


def _clamps(modifiers: Mapping[str, str]) -> str:
    (low, high), (least, most) = _range(dtype(modifiers["to"])), _range(dtype(modifiers["of"]))
    if "sat" in modifiers and low <= least and most <= high:
        return f"sat has nothing to do: every {modifiers['of']} is a {modifiers['to']}"
    return ""


def _bf16_plain(modifiers: Mapping[str, str]) -> str:
    types = (modifiers["to"], modifiers["of"])
    if "bf16" in types and ("sat" in modifiers or "u8" in types or "s8" in types):
        return "bf16 takes no sat and no 8-bit integers"
    return ""


def _ftz_needs_f32(modifiers: Mapping[str, str]) -> str:
    return "ftz needs an f32 on one side" if "ftz" in modifiers and "f32" not in (modifiers["to"], modifiers["of"]) else ""


def _narrows(modifiers: Mapping[str, str]) -> str:
    to, of = dtype(modifiers["to"]), dtype(modifiers["of"])
    if to.bits >= of.bits:
        return f"a rounding mode is for a narrower result; {of} to {to} is exact"
    return _ftz_needs_f32(modifiers)


def _widens(modifiers: Mapping[str, str]) -> str:
    to, of = dtype(modifiers["to"]), dtype(modifiers["of"])
    if to.bits <= of.bits:
        return f"{of} to {to} needs a rounding mode"
    if (to.name, of.name) == ("f32", "bf16") and "ftz" not in modifiers:
        return "bf16 to f32 has a row of its own, for older GPUs"
    return _ftz_needs_f32(modifiers)


def _same(modifiers: Mapping[str, str]) -> str:
    if modifiers["to"] != modifiers["of"]:
        return f"{modifiers['of']} to {modifiers['to']} takes rn, rz, rm or rp"
    return _ftz_needs_f32(modifiers)


@instruction("cvt.{sat?}.{to}.{of}", sat=SAT, to=INTEGERS, of=INTEGERS, d="{to}+", a="{of}+", rule=_clamps, specials=True)
def cvt(v: Algebra, a: Number, to: str, of: str, sat: str = "") -> Number:
    """Integer to integer: the low bits, or the nearest value with `sat`; extended by the sign of the source."""
    if sat:
        (low, high), (least, most) = _range(dtype(to)), _range(dtype(of))
        a = v.min(v.max(a, v.const(max(low, least), a.type)), v.const(min(high, most), a.type))
    return v.convert(a, dtype(to))


@instruction("cvt.{rnd}.{sat?}.{to}.{of}", d="{to}+", a="{of}+", defaults=RN, needs=BF16_NEEDS, rule=_bf16_plain)
@modifiers(rnd=ROUNDINGS, sat=SAT, to=FLOATS, of=INTEGERS)
def cvt_from_integer(v: Algebra, a: Number, rnd: str, to: str, of: str, sat: str = "") -> Number:
    """Integer to float, rounded as `rnd` says."""
    return saturate(v, _rounded(v, a, dtype(to), rnd), sat)


@instruction(
    "cvt.{rnd}.{ftz?}.{sat?}.{to}.{of}", defaults={"rnd": "rzi"}, needs=BF16_NEEDS, rule=together(_bf16_plain, _ftz_needs_f32)
)
@modifiers(rnd=INTEGER_ROUNDINGS, ftz=FTZ, sat=SAT, to=INTEGERS, of=FLOATS)
@operands(d="{to}+", a="{of}+")
def cvt_to_integer(v: Algebra, a: Number, rnd: str, to: str, of: str, ftz: str = "", sat: str = "") -> Number:
    """Float to integer, clamped to its range. NaN gives 0, or the value of the top bit alone where either side has 64 bits."""
    if ftz and of == "f32":
        a = v.flush(a)
    type = dtype(to)
    d = v.convert(a if rnd == "rzi" else v.to_integral(a, rnd), type)
    if type.bits == 64 or a.type == F64:
        d = v.select(v.isnan(a), v.const(-(1 << type.bits - 1) if type.is_signed else 1 << type.bits - 1, type), d)
    return d


@instruction("cvt.{rnd}.{ftz?}.{sat?}.{to}.{of}", d="{to}+", a="{of}+", defaults=RN, rule=_narrows)
@modifiers(rnd=ROUNDINGS, ftz=FTZ, sat=SAT, to=("f16", "f32"), of=("f32", "f64"))
def cvt_narrow(v: Algebra, a: Number, rnd: str, to: str, of: str, ftz: str = "", sat: str = "") -> Number:
    """Float to a narrower float, rounded by `rnd`. `ftz` flushes an f32 result, not a subnormal f32 that becomes f16."""
    d = _rounded(v, a, dtype(to), rnd)
    d = saturate(v, flushed_result(v, d, rnd, lambda wide: wide, a) if ftz and to == "f32" else d, sat)
    return d if of == "f64" else v.canonical(d)


@instruction("cvt.{rnd}.{relu?}.{to}.f32", d="{to}", a="f32", defaults=RN, sm=80, ptx=(7, 0))
@modifiers(rnd=("rn", "rz"), relu=RELU, to=("bf16",))
@instruction("cvt.{rnd}.{relu}.{to}.f32", d="{to}", a="f32", defaults=RN, sm=80, ptx=(7, 0))
@modifiers(rnd=("rn", "rz"), relu=RELU, to=("f16",))
def cvt_half(v: Algebra, a: Number, rnd: str, to: str, relu: str = "") -> Number:
    """f32 to bf16 or f16; with `relu` a negative number gives 0."""
    return v.canonical(rectify(v, _rounded(v, a, dtype(to), rnd), relu))


@instruction("cvt.{rnd}.{relu?}.{to}.f32", d="{to}", a="f32", b="f32", defaults=RN, sm=80, ptx=(7, 0))
@modifiers(rnd=("rn", "rz"), relu=RELU, to=("f16x2", "bf16x2"))
def cvt_pair(v: Algebra, a: Number, b: Number, rnd: str, to: str, relu: str = "") -> Number:
    """Two f32 to a packed pair: a to the high half, b to the low half."""
    pair = {"f16x2": F16X2, "bf16x2": BF16X2}[to]
    half = dtype(to.removesuffix("x2"))
    high, low = (v.canonical(rectify(v, _rounded(v, x, half, rnd), relu)) for x in (a, b))
    return v.join(low, high, pair)


@instruction("cvt.{to}.{of}", to=("f32",), of=("bf16",), d="{to}+", a="{of}", sm=80, ptx=(7, 1))
@instruction("cvt.{ftz?}.{sat?}.{to}.{of}", d="{to}+", a="{of}+", needs=BF16_NEEDS, rule=together(_bf16_plain, _widens))
@modifiers(ftz=FTZ, sat=SAT, to=("f32", "f64"), of=("f16", "f32", "bf16"))
def cvt_widen(v: Algebra, a: Number, to: str, of: str, ftz: str = "", sat: str = "") -> Number:
    """Float to a wider float, exact."""
    if ftz and of == "f32":
        a = v.canonical(v.flush(a))
    d = v.convert(a, dtype(to))
    d = saturate(v, v.flush(d) if ftz and to == "f32" else d, sat)
    shifted = of == "bf16" and not ftz
    return v.canonical(d) if to == "f32" and not shifted else d


@instruction("cvt.{rnd?}.{ftz?}.{sat?}.{to}.{of}", d="{to}+", a="{of}+", rule=_same)
@modifiers(rnd=INTEGER_ROUNDINGS, ftz=FTZ, sat=SAT, to=("f16", "f32", "f64"), of=("f16", "f32", "f64"))
def cvt_integral(v: Algebra, a: Number, to: str, of: str, rnd: str = "", ftz: str = "", sat: str = "") -> Number:
    """A float of the same type: rounded to a whole number, flushed or clamped as the modifiers say."""
    if ftz:
        a = v.flush(a)
    d = v.to_integral(a, rnd) if rnd else a
    d = saturate(v, d, sat)
    moved = a.type == F32 and not (rnd or ftz)
    return d if a.type == F64 or moved else v.canonical(d)


@instruction(
    "cvt.{rnd}.{to}.f32", rnd=("rna",), to=("tf32",), d="b32:{to}", a="f32", defaults={"rnd": "rna"}, sm=80, ptx=(7, 0)
)
def cvt_tf32(v: Algebra, a: Number, rnd: str, to: str) -> Number:
    """f32 to tf32 (10 bits of fraction), ties away from zero. Of a NaN the low 13 bits are cut off; one without others becomes
    infinity."""
    word = v.bits(a, U32)
    special = (word & 0x7F800000) == 0x7F800000
    return v.bits(v.select(special, word, word + 0x1000) & 0xFFFFE000, B32)


EIGHT_BITS = {"e4m3x2": (4, 3, 448.0), "e5m2x2": (5, 2, 57344.0)}
"""By the type of a pair: bits of the exponent and of the fraction of one, and the largest number."""
from_pair = partial(
    instruction, rnd=("rn",), sat=("satfinite",), relu=RELU, defaults={"rnd": "rn", "sat": "satfinite"}, sm=89, ptx=(8, 1)
)


def _to_eight_bits(v: Algebra, a: Number, to: str, relu: str) -> Number:
    """u32: an f32 as e4m3 or e5m2, to nearest even, clamped to the largest number; of a NaN the canonical one."""
    exponent_bits, fraction_bits, largest = EIGHT_BITS[to]
    bias = (1 << exponent_bits - 1) - 1
    number = v.max(a, v.const(0.0, F32)) if relu else a
    sign = (v.bits(number, U32) >> 24) & 0x80
    size = v.min(v.abs(number), v.const(largest, F32))
    exponent = v.max(v.bits(size, U32) >> 23, v.const(128 - bias, U32))  # a subnormal has the spacing of the least normal
    spaced = v.bits((exponent + (23 - fraction_bits)) << 23, F32)  # numbers from here on are as far apart as the results are
    rounded = (size + spaced) - spaced
    normal = (v.bits(rounded, U32) >> (23 - fraction_bits)) - (127 - bias << fraction_bits)
    subnormal = v.convert(rounded * 2.0 ** (bias - 1 + fraction_bits), U32)
    code = v.select(rounded < 2.0 ** (1 - bias), subnormal, normal)
    return v.select(v.isnan(a), v.const(0x7F, U32), code | sign)


@from_pair("cvt.{rnd}.{sat}.{relu?}.{to}.f32", to=tuple(EIGHT_BITS), d="b16:u16", a="f32", b="f32")
def cvt_eight_bits(v: Algebra, a: Number, b: Number, rnd: str, sat: str, to: str, relu: str = "") -> Number:
    """Two f32 to a pair of 8-bit floats: a to the high byte, b to the low byte; clamped to the largest number."""
    high, low = (_to_eight_bits(v, x, to, relu) for x in (a, b))
    return v.bits(v.convert(high << 8 | low, U16), B16)


@from_pair("cvt.{rnd}.{sat}.{relu?}.{to}.{of}", to=tuple(EIGHT_BITS), of=("f16x2",), d="b16:u16", a="{of}")
def cvt_halves_to_eight_bits(v: Algebra, a: Number, rnd: str, sat: str, to: str, of: str, relu: str = "") -> Number:
    """Two f16 to a pair of 8-bit floats, clamped to the largest number."""
    low, high = (_to_eight_bits(v, v.convert(half, F32), to, relu) for half in v.lanes_of(a))
    return v.bits(v.convert(high << 8 | low, U16), B16)


@instruction("cvt.{rnd}.{relu?}.{to}.{of}", d="{to}", a="b16:u16", bounds={"a": ()}, defaults=RN, sm=89, ptx=(8, 1))
@modifiers(rnd=("rn",), relu=RELU, to=("f16x2",), of=tuple(EIGHT_BITS))
def cvt_from_eight_bits(v: Algebra, a: Number, rnd: str, to: str, of: str, relu: str = "") -> Number:
    """A pair of 8-bit floats to two f16, exact; with `relu` a negative number gives 0."""
    pair = v.convert(v.bits(a, U16), U32)
    halves = []
    for shift in (0, 8):
        code = (pair >> shift) & 0xFF
        sign, size = (code & 0x80) << 8, code & 0x7F
        if of == "e5m2x2":
            half = v.bits(v.convert(sign | size << 8, U16), F16)
        else:  # the exponent counts from 7 here and from 15 there
            half = v.bits(v.convert(sign | size << 7, U16), F16) * 256.0
            half = v.select(size == 0x7F, v.bits(v.const(0x7FFF, U16), F16), half)
        halves.append(v.canonical(rectify(v, half, relu)))
    return v.join(halves[0], halves[1], F16X2)


def _rounded(v: Algebra, a: Number, type: DType, rnd: str) -> Number:
    return v.convert(a, type) if rnd == "rn" else v.rounded(rnd, lambda x: v.convert(x, type), a)
