"""Arithmetic of the bytes or halves of 32-bit words: the SIMD video instructions of PTX ISA 9.7.18.2, without the masks and
selectors of operands (`d.b10`, `a.b7531`), so on all bytes or halves in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.parts import SAT, dtype
from ptxgen.isa.units import Unit
from ptxgen.types import S32, U32

WORDS = ("u32", "s32")
RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
REGISTERS = {"a": (), "b": (), "c": ()}
"""The bounds of constants: there are none, only registers."""
instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.ALU, bounds=REGISTERS, a_type=WORDS, b_type=WORDS)


def lanes(v: Algebra, word: Number, count: int, type: str) -> list[Number]:
    """The `count` bytes or halves of a word, lowest first, as s32: extended by their sign for s32, else by zeros."""
    bits = 32 // count
    whole = v.bits(word, dtype(type))
    return [v.bits((whole << (32 - bits * (i + 1))) >> (32 - bits), S32) for i in range(count)]


def word_of(v: Algebra, parts: list[Number]) -> Number:
    """The word whose bytes or halves are the low bits of these, lowest first."""
    bits = 32 // len(parts)
    word = v.const(0, U32)
    for i, part in enumerate(parts):
        word = word | (v.bits(part, U32) & (1 << bits) - 1) << bits * i
    return word


def average(v: Algebra, a: Number, b: Number) -> Number:
    """Half the sum, a half rounded away from zero."""
    total = a + b
    return v.select(total >= 0, total + 1, total) >> 1


OPERATIONS: dict[str, tuple[str, Callable[[Algebra, Number, Number], Number]]] = {
    "vadd": ("a + b", lambda v, a, b: a + b),
    "vsub": ("a - b", lambda v, a, b: a - b),
    "vavrg": ("(a + b) / 2, a half rounded away from zero", average),
    "vabsdiff": ("|a - b|", lambda v, a, b: v.abs(a - b)),
    "vmin": ("The smaller of a and b", lambda v, a, b: v.min(a, b)),
    "vmax": ("The larger of a and b", lambda v, a, b: v.max(a, b)),
}
PARTS = {2: "halves", 4: "bytes"}


def _clamped(v: Algebra, part: Number, count: int, type: str) -> Number:
    bits = 32 // count
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if type == "s32" else (0, (1 << bits) - 1)
    return v.min(v.max(part, v.const(low, S32)), v.const(high, S32))


def _rows(name: str, count: int, number: int) -> None:
    what, work = OPERATIONS[name]

    def results(v: Algebra, a: Number, b: Number, a_type: str, b_type: str) -> list[Number]:
        pairs = zip(lanes(v, a, count, a_type), lanes(v, b, count, b_type), strict=True)
        return [work(v, x, y) for x, y in pairs]

    def merged(v: Algebra, a: Number, b: Number, c: Number, type: str, a_type: str, b_type: str, sat: str = "") -> Number:
        parts = results(v, a, b, a_type, b_type)
        return v.bits(word_of(v, [_clamped(v, part, count, type) if sat else part for part in parts]), dtype(type))

    def added(v: Algebra, a: Number, b: Number, c: Number, type: str, a_type: str, b_type: str) -> Number:
        total = v.bits(c, S32)
        for part in results(v, a, b, a_type, b_type):
            total = total + part
        return v.bits(total, dtype(type))

    of = f"by {PARTS[count]}, which a_type and b_type extend"
    merged.__doc__ = f"{what}, {of}; with `sat` clamped to {PARTS[count]} of d. c (for masks) is not used."
    added.__doc__ = f"{what}, {of}; d is their sum and c."
    row = partial(
        instruction,
        type=WORDS,
        d="{type}",
        a="{a_type}",
        b="{b_type}",
        c="{type}",
        name=f"{name}{count}",
        section=f"9.7.18.2.{number}",
    )
    row(f"{name}{count}.{{type}}.{{a_type}}.{{b_type}}.{{sat?}}", sat=SAT)(merged)
    table.instruction(
        f"{name}{count}.{{type}}.{{a_type}}.{{b_type}}.add",
        effect=Effect.NONE,
        unit=Unit.ALU,
        bounds=REGISTERS,
        type=WORDS,
        a_type=WORDS,
        b_type=WORDS,
        d="{type}",
        a="{a_type}",
        b="{b_type}",
        c="{type}",
        name=f"{name}{count}_add",
        section=f"9.7.18.2.{number}",
    )(added)


def _comparisons(count: int, number: int) -> None:
    def results(v: Algebra, a: Number, b: Number, a_type: str, b_type: str, cmp: str) -> list[Number]:
        pairs = zip(lanes(v, a, count, a_type), lanes(v, b, count, b_type), strict=True)
        compared = [{"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[cmp] for x, y in pairs]
        return [v.select(holds, v.const(1, S32), v.const(0, S32)) for holds in compared]

    def merged(v: Algebra, a: Number, b: Number, c: Number, a_type: str, b_type: str, cmp: str) -> Number:
        return word_of(v, results(v, a, b, a_type, b_type, cmp))

    def added(v: Algebra, a: Number, b: Number, c: Number, a_type: str, b_type: str, cmp: str) -> Number:
        total = v.bits(c, S32)
        for part in results(v, a, b, a_type, b_type, cmp):
            total = total + part
        return v.bits(total, U32)

    of = f"{PARTS[count]}, which a_type and b_type extend"
    merged.__doc__ = f"Compare the {of}; 1 or 0 in those of d. c (for masks) is not used."
    added.__doc__ = f"Compare the {of}; d is c and how many hold."
    for add, meaning in (("", merged), (".add", added)):
        instruction(
            f"vset{count}.{{a_type}}.{{b_type}}.{{cmp}}{add}",
            cmp=RELATIONS,
            d="u32",
            a="{a_type}",
            b="{b_type}",
            c="u32",
            name=f"vset{count}{'_add' if add else ''}",
            section=f"9.7.18.2.{number}",
        )(meaning)


for _name in OPERATIONS:
    _rows(_name, 2, 1)
_comparisons(2, 2)
for _name in OPERATIONS:
    _rows(_name, 4, 3)
_comparisons(4, 4)
