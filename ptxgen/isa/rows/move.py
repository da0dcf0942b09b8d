"""Moves between registers, packing and byte permutation: the rows of PTX ISA 9.7.9.3, 9.7.9.4 and 9.7.9.7."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers
from ptxgen.isa.parts import BITS, INTEGERS
from ptxgen.isa.units import Unit
from ptxgen.types import B32, B64, U32, U64

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.ALU)


def _is_integer(modifiers: Mapping[str, str]) -> bool:
    return modifiers.get("type") not in ("pred", "f32", "f64")


@instruction("mov.{type}", d="{type}", a="{type}", specials=True, symbols=_is_integer, section="9.7.9.3")
@modifiers(type=("pred", *BITS, *INTEGERS, "f32", "f64"))
def mov(v: Algebra, a: Number, type: str) -> Number:
    """Copy a register, a constant, a special register or the address of a variable."""
    return a


@instruction("mov.b32", d="b32", a="b16[2]", name="mov", section="9.7.9.4")
@instruction("mov.b64", d="b64", a="b32[2]", name="mov", section="9.7.9.4")
def mov_pack_2(v: Algebra, a: tuple[Number, Number]) -> Number:
    """Put two registers side by side, the first lowest."""
    return v.join(a[0], a[1], B32 if a[0].type.bits == 16 else B64)


@instruction("mov.b64", d="b64", a="b16[4]", name="mov", section="9.7.9.4")
def mov_pack_4(v: Algebra, a: tuple[Number, Number, Number, Number]) -> Number:
    """Put four registers side by side, the first lowest."""
    return v.join(v.join(a[0], a[1], B32), v.join(a[2], a[3], B32), B64)


@instruction("mov.b32", d="b16[2]", a="b32", name="mov", specials=True, symbols=_is_integer, section="9.7.9.4")
@instruction("mov.b64", d="b32[2]", a="b64", name="mov", specials=True, symbols=_is_integer, section="9.7.9.4")
def mov_unpack_2(v: Algebra, a: Number) -> tuple[Number, Number]:
    """Take a register apart, the lowest half first."""
    return v.lanes_of(a)


@instruction("mov.b64", d="b16[4]", a="b64", name="mov", specials=True, symbols=_is_integer, section="9.7.9.4")
def mov_unpack_4(v: Algebra, a: Number) -> tuple[Number, ...]:
    """Take a register apart in four, the lowest quarter first."""
    low, high = v.lanes_of(a)
    return (*v.lanes_of(low), *v.lanes_of(high))


@instruction("prmt.b32", d="b32", a="b32", b="b32", c="b32", section="9.7.9.7")
def prmt(v: Algebra, a: Number, b: Number, c: Number) -> Number:
    """Each byte of d is the byte of {b, a} that a nibble of c names, or its sign replicated if the nibble's top bit is set."""
    eight = v.join(v.bits(a, U32), v.bits(b, U32), U64)
    selectors = v.bits(c, U32)
    d = v.const(0, U32)
    for i in range(4):
        selector = selectors >> (4 * i)
        byte = v.convert(eight >> ((selector & 7) << 3), U32) & 0xFF
        sign = (v.const(0, U32) - (byte >> 7)) & 0xFF
        d = d | (v.select((selector & 8) == 0, byte, sign) << (8 * i))
    return v.bits(d, B32)


@instruction("prmt.b32.{mode}", d="b32", a="b32", b="b32", c="b32", name="prmt", section="9.7.9.7")
@modifiers(mode=("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))
def prmt_mode(v: Algebra, a: Number, b: Number, c: Number, mode: str) -> Number:
    """The four bytes of {b, a} that the mode and the two low bits of c name."""
    eight = v.join(v.bits(a, U32), v.bits(b, U32), U64)
    s = v.bits(c, U32) & 3
    zero = v.const(0, U32)
    bytes_taken = {
        "f4e": [s + i for i in range(4)],
        "b4e": [(s - i) & 7 for i in range(4)],
        "rc8": [s] * 4,
        "ecl": [v.max(s, zero + i) for i in range(4)],
        "ecr": [v.min(s, zero + i) for i in range(4)],
        "rc16": [((s & 1) << 1) + (i & 1) for i in range(4)],
    }[mode]
    d = zero
    for i, index in enumerate(bytes_taken):
        d = d | ((v.convert(eight >> (index << 3), U32) & 0xFF) << (8 * i))
    return v.bits(d, B32)
