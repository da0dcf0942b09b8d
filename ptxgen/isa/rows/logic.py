"""Logic and shifts: the rows of PTX ISA 9.7.8."""

from __future__ import annotations

from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers
from ptxgen.isa.parts import BITS, INTEGERS, dtype
from ptxgen.isa.units import Unit
from ptxgen.types import B32, U32

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.ALU)

LOGIC = ("pred", *BITS)


@instruction("and.{type}", type=LOGIC, d="{type}", a="{type}", b="{type}", section="9.7.8.1")
def and_(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a & b."""
    return a & b


@instruction("or.{type}", type=LOGIC, d="{type}", a="{type}", b="{type}", section="9.7.8.2")
def or_(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a | b."""
    return a | b


@instruction("xor.{type}", type=LOGIC, d="{type}", a="{type}", b="{type}", section="9.7.8.3")
def xor(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a ^ b."""
    return a ^ b


@instruction("not.{type}", type=LOGIC, d="{type}", a="{type}", section="9.7.8.4")
def not_(v: Algebra, a: Number, type: str) -> Number:
    """d = ~a."""
    return ~a


@instruction("cnot.{type}", type=BITS, d="{type}", a="{type}", section="9.7.8.5")
def cnot(v: Algebra, a: Number, type: str) -> Number:
    """d = 1 where a is 0, else 0."""
    return v.select(a == 0, v.const(1, a.type), v.const(0, a.type))


def _lookup(v: Algebra, table: int, inputs: tuple[Number, ...]) -> Number:
    """The truth table (bit i is the result where the inputs, the first highest, spell i) as logic."""
    if not inputs:
        return v.const(0xFFFFFFFF if table else 0, B32)
    half = 1 << len(inputs) - 1
    low, high = (_lookup(v, part, inputs[1:]) for part in (table & (1 << half) - 1, table >> half))
    return low if table & (1 << half) - 1 == table >> half else (inputs[0] & high) | (~inputs[0] & low)


@instruction("lop3.b32", d="b32", a="b32", b="b32", c="b32", table="imm", section="9.7.8.6")
def lop3(v: Algebra, a: Number, b: Number, c: Number, table: int) -> Number:
    """Any logic function of three inputs: bit i of `table` is the result where (a, b, c) spell i, a highest."""
    return _lookup(v, table & 0xFF, (a, b, c))


@instruction("shf.{direction}.{mode}.b32", d="b32", a="b32", b="b32", c="u32", section="9.7.8.7")
@modifiers(direction=("l", "r"), mode=("clamp", "wrap"))
def shf(v: Algebra, a: Number, b: Number, c: Number, direction: str, mode: str) -> Number:
    """Shift the 64 bits {b, a} by c (up to 32, or modulo 32); the high half of a left shift, the low half of a right one."""
    n = v.min(c, v.const(32, U32)) if mode == "clamp" else c & 31
    rest = 32 - n
    return (b << n) | (a >> rest) if direction == "l" else (b << rest) | (a >> n)


@instruction("shl.{type}", type=BITS, d="{type}", a="{type}", b="u32", section="9.7.8.8")
def shl(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a << b; a count of the width or more gives 0."""
    return a << b


@instruction("shr.{type}", type=(*INTEGERS, *BITS), d="{type}", a="{type}", b="u32", section="9.7.8.9")
def shr(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a >> b, filled with the sign for signed types; a count of the width or more gives all fill."""
    return a >> b


@instruction("bmsk.{mode}.b32", mode=("clamp", "wrap"), d="b32", a="u32", b="u32", ptx=(7, 6), section="9.7.1.22")
def bmsk(v: Algebra, a: Number, b: Number, mode: str) -> Number:
    """A mask of b ones that starts at bit a; both cut at 32, or taken modulo 32."""
    if mode == "wrap":
        a, b = a & 31, b & 31
    one = v.const(1, dtype("u32"))
    return v.bits(((one << b) - 1) << a, B32)
