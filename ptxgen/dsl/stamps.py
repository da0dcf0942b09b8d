"""The stamped form of a kernel: the same instructions, and in memory of its own the times at which a launch of it starts, has
waited for the launch before it, and ends. What a graph of such launches is good for is the executor's business.

Each time is a number of nanoseconds of the GPU's one clock (%globaltimer, PTX ISA 10.28). All bytes of the stamps must be UNSET
before a launch: the largest of all times as u64, and less than any of them as s64. The threads then leave the least time of
START and WAITED and the greatest of END, in one of several rows: one word would make the blocks of a GPU queue for it."""

from __future__ import annotations

from typing import Final

from ptxgen.dsl.arguments import Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.ir import Op
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError
from ptxgen.isa.effects import ENDS, Effect
from ptxgen.types import S64, U64

NAME: Final = "stamps"
"""The argument, after those of the kernel."""
ROWS: Final = 32
"""A block takes the row of its number along x."""
START: Final = 0
WAITED: Final = 1
END: Final = 2
"""The columns. WAITED stays UNSET where the text waits for no launch before it; a fourth column fills up a sector of memory."""
UNSET: Final = 0xFF

STAMPS: Final = update(U64, ROWS, 4, align=32)


_STAMPED: Final = ENDS - {Effect.TRAP}
"""The stamps of a launch that traps are not read."""


def stamped_signature(kernel: KernelType) -> Signature:
    """The arguments of the stamped form. AuthorError for a kernel that has one of that name itself."""
    signature = kernel.signature()
    if NAME in signature:
        raise AuthorError(f"{kernel.name} has an argument {NAME}, which its stamped form needs for itself", None, "rename it")
    return {**signature, NAME: STAMPS}


def write_stamps(k: KernelBuilder) -> None:
    """Put the stamps into the body that was written: one thread of each block says when it starts, and when it has waited; and
    those of a warp that end together, whichever these are, say so once. Before the wait nothing is written, since memory that
    is no constant may not be touched there: the time of the start is kept in a register so long."""
    written, k.body = k.body, []
    waits = any(_waits(line) for line in written)
    first = (k.tid.x | k.tid.y | k.tid.z) == 0
    start = _now(k)
    if not waits:
        _stamp_least(k, START, start, first)
    for line in written:
        if isinstance(line, Op) and line.row.effect in _STAMPED:
            _stamp_end_before(k, line)
        k.body.append(line)
        if _waits(line):
            _stamp_least(k, START, start, first)
            _stamp_least(k, WAITED, _now(k), first)
    _stamp_end(k)


def _waits(line: object) -> bool:
    return isinstance(line, Op) and line.row.waits_for_grids(line.modifiers)


def _now(k: KernelBuilder) -> Value:
    return k.special("%globaltimer")


def _stamp_least(k: KernelBuilder, column: int, time: Value, guard: Value) -> None:
    place = k.arg.stamps[k.ctaid.x & (ROWS - 1), column]
    k.write("red", [place.address, time], modifiers={"space": "global", "op": "min", "type": "u64"}, guard=guard)


def _stamp_end(k: KernelBuilder) -> None:
    place = k.arg.stamps[k.ctaid.x & (ROWS - 1), END]
    chosen = (k.activemask() & k.special("%lanemask_lt")) == 0  # the lowest lane of those that are here
    time = k.bits(_now(k), S64)
    k.write("red", [place.address, time], modifiers={"space": "global", "op": "max", "type": "s64"}, guard=chosen)


def _stamp_end_before(k: KernelBuilder, end: Op) -> None:
    """A guarded end is one for some threads only: the others go around the stamp."""
    if end.guard is None:
        _stamp_end(k)
        return
    around = k.new_label("goes_on")
    k.branch(around, Value(k, end.guard), negated=not end.guard_negated)
    _stamp_end(k)
    k.place(around)
