"""Integer arithmetic: the rows of PTX ISA 9.7.1 but bmsk (logic.py)."""

from __future__ import annotations

from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.operand_spec import wide
from ptxgen.isa.parts import INTEGERS, SIGNED, dtype
from ptxgen.isa.units import Unit
from ptxgen.types import B32, S16, S32, U16, U32, DType

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.ALU)

NARROW = ("u16", "u32", "s16", "s32")


def product(v: Algebra, a: Number, b: Number) -> Number:
    """a * b in twice the width."""
    return v.convert(a, wide(a.type)) * v.convert(b, wide(b.type))


def clamp(v: Algebra, a: Number, type: DType) -> Number:
    """The value of `type` nearest to a signed one of twice the width."""
    low, high = -(1 << type.bits - 1), (1 << type.bits - 1) - 1
    return v.convert(v.min(v.max(a, v.const(low, a.type)), v.const(high, a.type)), type)


@instruction("add.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", section="9.7.1.1")
def add(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a + b, wrapping."""
    return a + b


@instruction("add.{sat}.s32", sat=("sat",), d="s32", a="s32", b="s32", name="add", section="9.7.1.1")
def add_sat(v: Algebra, a: Number, b: Number, sat: str) -> Number:
    """d = a + b, clamped to the range of s32."""
    return clamp(v, v.convert(a, wide(S32)) + v.convert(b, wide(S32)), S32)


@instruction("sub.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", section="9.7.1.2")
def sub(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a - b, wrapping."""
    return a - b


@instruction("sub.{sat}.s32", sat=("sat",), d="s32", a="s32", b="s32", name="sub", section="9.7.1.2")
def sub_sat(v: Algebra, a: Number, b: Number, sat: str) -> Number:
    """d = a - b, clamped to the range of s32."""
    return clamp(v, v.convert(a, wide(S32)) - v.convert(b, wide(S32)), S32)


@instruction("mul.lo.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", unit=Unit.MULTIPLY, section="9.7.1.3")
def mul(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """The low half of a * b."""
    return a * b


@instruction("mul.hi.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", unit=Unit.MULTIPLY, section="9.7.1.3")
def mul_hi(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """The high half of a * b."""
    return v.mul_hi(a, b)


@instruction("mul.wide.{type}", type=NARROW, d="2{type}", a="{type}", b="{type}", unit=Unit.MULTIPLY, section="9.7.1.3")
def mul_wide(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """a * b in twice the width."""
    return product(v, a, b)


@instruction("mad.lo.{type}", d="{type}", a="{type}", b="{type}", c="{type}", unit=Unit.MULTIPLY, section="9.7.1.4")
@modifiers(type=INTEGERS)
def mad(v: Algebra, a: Number, b: Number, c: Number, type: str) -> Number:
    """The low half of a * b, plus c."""
    return a * b + c


@instruction("mad.hi.{type}", d="{type}", a="{type}", b="{type}", c="{type}", unit=Unit.MULTIPLY, section="9.7.1.4")
@modifiers(type=INTEGERS)
def mad_hi(v: Algebra, a: Number, b: Number, c: Number, type: str) -> Number:
    """The high half of a * b, plus c."""
    return v.mul_hi(a, b) + c


@instruction("mad.hi.{sat}.s32", d="s32", a="s32", b="s32", c="s32", name="mad_hi", unit=Unit.MULTIPLY, section="9.7.1.4")
@modifiers(sat=("sat",))
def mad_hi_sat(v: Algebra, a: Number, b: Number, c: Number, sat: str) -> Number:
    """The high half of a * b, plus c, clamped to the range of s32."""
    return clamp(v, v.convert(v.mul_hi(a, b), wide(S32)) + v.convert(c, wide(S32)), S32)


@instruction("mad.wide.{type}", d="2{type}", a="{type}", b="{type}", c="2{type}", unit=Unit.MULTIPLY, section="9.7.1.4")
@modifiers(type=NARROW)
def mad_wide(v: Algebra, a: Number, b: Number, c: Number, type: str) -> Number:
    """a * b + c in twice the width of a and b."""
    return product(v, a, b) + c


def _product_24(v: Algebra, a: Number, b: Number, half: str) -> Number:
    """Bits 0..31 (lo) or 16..47 (hi) of the product of the low 24 bits, extended by their sign."""
    full = product(v, (a << 8) >> 8, (b << 8) >> 8)
    return v.convert(full >> 16 if half == "hi" else full, a.type)


@instruction("mul24.{half}.{type}", defaults={"half": "lo"}, unit=Unit.MULTIPLY, section="9.7.1.5")
@modifiers(half=("lo", "hi"), type=("u32", "s32"))
@operands(d="{type}", a="{type}", b="{type}")
def mul24(v: Algebra, a: Number, b: Number, half: str, type: str) -> Number:
    """The low or high 32 bits of the 48-bit product of two 24-bit numbers."""
    return _product_24(v, a, b, half)


@instruction("mad24.{half}.{type}", defaults={"half": "lo"}, unit=Unit.MULTIPLY, section="9.7.1.6")
@modifiers(half=("lo", "hi"), type=("u32", "s32"))
@operands(d="{type}", a="{type}", b="{type}", c="{type}")
def mad24(v: Algebra, a: Number, b: Number, c: Number, half: str, type: str) -> Number:
    """mul24, plus c."""
    return _product_24(v, a, b, half) + c


@instruction("sad.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", c="{type}", section="9.7.1.7")
def sad(v: Algebra, a: Number, b: Number, c: Number, type: str) -> Number:
    """c + |a - b|."""
    return c + (v.max(a, b) - v.min(a, b))


@instruction("div.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", unit=Unit.SPECIAL, section="9.7.1.8")
def div(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """The quotient, toward zero."""
    return v.div(a, b)


@instruction("rem.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", unit=Unit.SPECIAL, section="9.7.1.9")
def rem(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """The remainder, with the sign of a. By zero all ones, as `div` (as GPUs do; the ISA leaves it open)."""
    return v.rem(a, b)


@instruction("abs.{type}", type=SIGNED, d="{type}", a="{type}", section="9.7.1.10")
def abs_(v: Algebra, a: Number, type: str) -> Number:
    """|a|; the least number gives itself."""
    return v.abs(a)


@instruction("neg.{type}", type=SIGNED, d="{type}", a="{type}", section="9.7.1.11")
def neg(v: Algebra, a: Number, type: str) -> Number:
    """d = -a, wrapping."""
    return 0 - a


@instruction("min.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", section="9.7.1.12")
@instruction("min.{relu}.s32", relu=("relu",), d="s32", a="s32", b="s32", sm=90, ptx=(8, 0), section="9.7.1.12")
def min_(v: Algebra, a: Number, b: Number, type: str = "s32", relu: str = "") -> Number:
    """The smaller of the two; with `relu` at least 0."""
    d = v.min(a, b)
    return v.max(d, v.const(0, d.type)) if relu else d


@instruction("max.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", section="9.7.1.13")
@instruction("max.{relu}.s32", relu=("relu",), d="s32", a="s32", b="s32", sm=90, ptx=(8, 0), section="9.7.1.13")
def max_(v: Algebra, a: Number, b: Number, type: str = "s32", relu: str = "") -> Number:
    """The larger of the two; with `relu` at least 0."""
    d = v.max(a, b)
    return v.max(d, v.const(0, d.type)) if relu else d


@instruction("popc.{type}", type=("b32", "b64"), d="u32", a="{type}", unit=Unit.SPECIAL, section="9.7.1.14")
def popc(v: Algebra, a: Number, type: str) -> Number:
    """How many bits are 1."""
    return v.convert(v.popc(a), U32)


@instruction("clz.{type}", type=("b32", "b64"), d="u32", a="{type}", unit=Unit.SPECIAL, section="9.7.1.15")
def clz(v: Algebra, a: Number, type: str) -> Number:
    """How many bits above the highest 1; the width for 0."""
    return v.convert(v.clz(a), U32)


@instruction("bfind.{shiftamt?}.{type}", d="u32", a="{type}", unit=Unit.SPECIAL, section="9.7.1.16")
@modifiers(shiftamt=("shiftamt",), type=("u32", "u64", "s32", "s64"))
def bfind(v: Algebra, a: Number, type: str, shiftamt: str = "") -> Number:
    """The place of the highest bit that is not sign; with `shiftamt`, the shift that brings it to the top; all ones if none."""
    kind = dtype(type)
    word = v.bits(v.select(a < 0, ~a, a) if kind.is_signed else a, dtype(f"u{kind.bits}"))
    zeros = v.convert(v.clz(word), U32)
    return v.select(word == 0, v.const(0xFFFFFFFF, U32), zeros if shiftamt else kind.bits - 1 - zeros)


@instruction("fns.b32", d="b32", a="b32", b="b32:u32", c="s32", section="9.7.1.17")
def fns(v: Algebra, a: Number, b: Number, c: Number) -> Number:
    """The place of the c-th set bit of a from place b (0..31) on, downwards for negative c; for c = 0, b if its bit is set. All
    ones if there is none."""
    word, start, count = v.bits(a, U32), v.bits(b, U32), v.bits(c, S32)
    one = v.const(1, U32)
    from_here = v.select(count > 0, ~((one << start) - 1), (one + 1 << start) - 1)
    field = word & v.select(count == 0, one << start, from_here)
    field = v.select(start > 31, v.const(0, U32), v.select(count < 0, v.brev(field), field))
    wanted = v.select(count == 0, one, v.bits(v.abs(count), U32))
    d, seen = v.const(0xFFFFFFFF, U32), v.const(0, U32)
    for place in range(32):
        bit = (field >> place) & 1
        seen = seen + bit
        here = v.select(count < 0, v.const(31 - place, U32), v.const(place, U32))
        d = v.select((bit == 1) & (seen == wanted), here, d)
    return v.bits(d, B32)


@instruction("brev.{type}", type=("b32", "b64"), d="{type}", a="{type}", unit=Unit.SPECIAL, section="9.7.1.18")
def brev(v: Algebra, a: Number, type: str) -> Number:
    """The bits in the opposite order."""
    return v.brev(a)


def _bit_count(v: Algebra, count: Number, type: DType) -> Number:
    """A position or length of `bfe` and `bfi`, 0..255. Of a number beyond that the ISA and 32-bit GPU instructions take the low
    byte; the shifts that the assembler writes for 64 bits take it whole, so there it is clamped."""
    return count & 0xFF if type.bits == 32 else v.min(count, v.const(0xFF, U32))


@instruction("bfe.{type}", type=("u32", "u64", "s32", "s64"), bounds={"b": range(256), "c": range(256)}, section="9.7.1.19")
@operands(d="{type}", a="{type}", b="u32", c="u32")
def bfe(v: Algebra, a: Number, b: Number, c: Number, type: str) -> Number:
    """The c bits of a from bit b on, extended by their sign for signed types; b and c are 0..255."""
    start, length = _bit_count(v, b, dtype(type)), _bit_count(v, c, dtype(type))
    bits = dtype(type).bits
    if not dtype(type).is_signed:
        return (a >> start) & ((v.const(1, a.type) << length) - 1)
    top = v.min(start + length, v.const(bits, U32))  # one past the highest bit taken; above it there is only sign
    field = (a << (bits - top)) >> (bits - top + start)
    return v.select(length == 0, v.const(0, a.type), field)


@instruction("bfi.{type}", type=("b32", "b64"), bounds={"c": range(256), "e": range(256)}, section="9.7.1.20")
@operands(d="{type}", a="{type}", b="{type}", c="u32", e="u32")
def bfi(v: Algebra, a: Number, b: Number, c: Number, e: Number, type: str) -> Number:
    """b with its e bits from bit c on replaced by the low bits of a; c and e are 0..255."""
    unsigned = dtype(type.replace("b", "u"))
    start, length = _bit_count(v, c, unsigned), _bit_count(v, e, unsigned)
    mask = ((v.const(1, unsigned) << length) - 1) << start
    return v.bits((v.bits(b, unsigned) & ~mask) | ((v.bits(a, unsigned) << start) & mask), a.type)


@instruction("szext.{mode}.{type}", d="{type}", a="{type}", b="u32", ptx=(7, 6), section="9.7.1.21")
@modifiers(mode=("clamp", "wrap"), type=("u32", "s32"))
def szext(v: Algebra, a: Number, b: Number, mode: str, type: str) -> Number:
    """The low b bits of a, extended by their sign or by zeros; b is cut at 32, or taken modulo 32."""
    width = v.min(b, v.const(32, U32)) if mode == "clamp" else b & 31
    return (a << (32 - width)) >> (32 - width)


@instruction("dp4a.{a_type}.{b_type}", a_type=("u32", "s32"), b_type=("u32", "s32"), unit=Unit.DOT, section="9.7.1.23")
@operands(d="u32|s32", a="b32:{a_type}", b="b32:{b_type}", c="=d")
def dp4a(v: Algebra, a: Number, b: Number, c: Number, a_type: str, b_type: str) -> Number:
    """Add the four byte products of a and b to c."""
    for i in range(4):
        left, right = v.byte(a, i, dtype(a_type)), v.byte(b, i, dtype(b_type))
        c = c + v.bits(left, c.type) * v.bits(right, c.type)
    return c


@instruction("dp2a.{half}.{a_type}.{b_type}", unit=Unit.DOT, section="9.7.1.24")
@modifiers(half=("lo", "hi"), a_type=("u32", "s32"), b_type=("u32", "s32"))
@operands(d="u32|s32", a="b32:{a_type}", b="b32:{b_type}", c="=d")
def dp2a(v: Algebra, a: Number, b: Number, c: Number, half: str, a_type: str, b_type: str) -> Number:
    """Add to c the products of the two halves of a with two bytes of b, the low or the high two."""
    for i, word in enumerate(v.lanes_of(v.bits(a, B32))):
        left = v.convert(v.bits(word, S16 if a_type == "s32" else U16), dtype(a_type))
        right = v.byte(b, i + (2 if half == "hi" else 0), dtype(b_type))
        c = c + v.bits(left, c.type) * v.bits(right, c.type)
    return c
