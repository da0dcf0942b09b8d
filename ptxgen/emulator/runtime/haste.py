"""Chance, for what a GPU may do at any moment: with a seed, when a copy moves its bytes."""

from __future__ import annotations

from ptxgen.emulator.layout import ContextWord
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.views import Context

_OFTEN = 4  # one in so many opportunities is taken


@runtime_function("i64", context="ptr", count="i32")
def chosen(b: Builder, context: IrValue, count: IrValue) -> None:
    """The number of one of `count` copies, whose bytes shall be moved now, or `count` for none; none without a seed."""
    c = Context(context)
    many = count.resized("i64")
    with b.when((c[ContextWord.HASTE] == 0) | (count == 0)):
        b.ret(many)
    chance = c[ContextWord.HASTE]  # xorshift64 (Marsaglia, Journal of Statistical Software 8(14), 2003)
    chance = chance ^ chance << 13
    chance = chance ^ chance >> 7
    chance = chance ^ chance << 17
    c[ContextWord.HASTE] = chance
    b.ret(((chance >> 32 & _OFTEN - 1) == 0).select((chance & 0xFFFF) % many, many))
