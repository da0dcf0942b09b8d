"""Extended-precision integer arithmetic through the carry flag: the rows of PTX ISA 9.7.2.

The ISA calls the flag a borrow after a subtraction. GPUs have one adder: a - b is a + ~b + 1, and the flag is its carry, so 1
where nothing was borrowed. Seen on sm_90, and in what the assembler writes for sm_75 to sm_90 (IADD3 then IADD3.X). A chain
of subtractions gives the same either way; `addc` after `sub.cc` and `subc` after `add.cc` do not.
"""

from __future__ import annotations

from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers
from ptxgen.isa.parts import dtype
from ptxgen.isa.units import Unit

CC = ("cc",)
instruction = partial(
    table.instruction,
    type=("u32", "s32", "u64", "s64"),
    d="{type}",
    a="{type}",
    b="{type}",
    effect=Effect.NONE,
    unit=Unit.ALU,
    writes_carry=True,
)


def _add(v: Algebra, a: Number, b: Number, *, carry_in: bool, carry_out: bool) -> Number:
    """a + b, plus the carry flag with `carry_in`; sets the flag with `carry_out`."""
    unsigned = dtype(f"u{a.type.bits}")
    left, right = v.bits(a, unsigned), v.bits(b, unsigned)
    d = left + right
    carried = d < left
    if carry_in:
        d, before = d + v.select(v.carry(), v.const(1, unsigned), v.const(0, unsigned)), d
        carried = carried | (d < before)
    if carry_out:
        v.set_carry(carried)
    return v.bits(d, a.type)


@instruction("add.cc.{type}", section="9.7.2.1")
def add_cc(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a + b; the carry flag gets the carry."""
    return _add(v, a, b, carry_in=False, carry_out=True)


@instruction("addc.{cc?}.{type}", cc=CC, reads_carry=True, section="9.7.2.2")
def addc(v: Algebra, a: Number, b: Number, type: str, cc: str = "") -> Number:
    """d = a + b + carry flag; with `cc` the flag gets the new carry."""
    return _add(v, a, b, carry_in=True, carry_out=bool(cc))


@instruction("sub.cc.{type}", section="9.7.2.3")
def sub_cc(v: Algebra, a: Number, b: Number, type: str) -> Number:
    """d = a - b; the carry flag becomes 1 if there is no borrow."""
    unsigned = dtype(f"u{a.type.bits}")
    v.set_carry(v.bits(a, unsigned) >= v.bits(b, unsigned))
    return a - b


@instruction("subc.{cc?}.{type}", cc=CC, reads_carry=True, section="9.7.2.4")
def subc(v: Algebra, a: Number, b: Number, type: str, cc: str = "") -> Number:
    """d = a - b, less 1 if the carry flag is 0; with `cc` the flag becomes 1 if there is no borrow."""
    return _add(v, a, ~b, carry_in=True, carry_out=bool(cc))


@instruction("mad.{half}.cc.{type}", half=("lo", "hi"), c="{type}", unit=Unit.MULTIPLY, section="9.7.2.5")
def mad_cc(v: Algebra, a: Number, b: Number, c: Number, half: str, type: str) -> Number:
    """Half of a * b, plus c; the carry flag gets the carry of the addition."""
    return _add(v, v.mul_hi(a, b) if half == "hi" else a * b, c, carry_in=False, carry_out=True)


@instruction("madc.{half}.{cc?}.{type}", c="{type}", unit=Unit.MULTIPLY, reads_carry=True, section="9.7.2.6")
@modifiers(half=("lo", "hi"), cc=CC)
def madc(v: Algebra, a: Number, b: Number, c: Number, half: str, type: str, cc: str = "") -> Number:
    """Half of a * b, plus c, plus the carry flag; with `cc` the flag gets the carry of the addition."""
    return _add(v, v.mul_hi(a, b) if half == "hi" else a * b, c, carry_in=True, carry_out=bool(cc))
