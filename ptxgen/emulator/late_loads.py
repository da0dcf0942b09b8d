"""Which loads may still be on their way when their thread arrives at a barrier: those whose values no instruction has read.

A load is issued, and the thread goes on until an instruction reads what was loaded. An arrival at an mbarrier does not wait for
it: on sm_90 bulk copies that were begun after such arrivals overwrote what loads had still to read. Once an instruction has
read the value, the load is over. So an arrival vouches for a load only if every register that the load writes is read on every
way from there to the arrival (PTX ISA 8.9.5 wants a proxy fence in either case; runtime/proxies.py has the whole rule).

This is found from the text, backwards from the arrivals as liveness is: of each place, the registers that are read on all ways
to the next arrival. A barrier of the block counts as an arrival, since any thread of it may then arrive for the others. A copy
of a register, and an integer that is only made wider or narrower, is no read, as the assembler may leave it out: there its
result must be read, or the source later. A guarded instruction reads, also what it overwrites in some lanes only."""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.emulator.flow import FlowBlock, reads_and_writes
from ptxgen.emulator.program import Step
from ptxgen.isa.effects import LOADS, Effect
from ptxgen.isa.rows.bulk_copy import mbarrier_init, mbarrier_try_wait_parity
from ptxgen.isa.rows.convert import cvt
from ptxgen.isa.rows.memory import cvta
from ptxgen.isa.rows.move import mov, mov_pack_2, mov_pack_4, mov_unpack_2, mov_unpack_4

_COPIES = (mov, mov_pack_2, mov_pack_4, mov_unpack_2, mov_unpack_4, cvta)


def arrives(step: Step) -> bool:
    """Whether an instruction arrives at an mbarrier."""
    return step.row.effect is Effect.MBARRIER and step.row.meaning not in (mbarrier_init, mbarrier_try_wait_parity)


def late_loads(blocks: list[FlowBlock]) -> frozenset[int]:
    """The `id`s of the loads from which some way leads to an arrival and does not read all that they load."""
    code = [[_Place.of(step) for step in block.instructions] for block in blocks]
    if not any(arrives(place.step) for places in code for place in places):
        return frozenset()
    everything = frozenset(name for places in code for place in places for name in place.writes)
    before = [everything] * len(blocks)  # where no arrival follows, nothing is wanting
    late: set[int] = set()
    changed = True
    while changed:
        changed = False
        for block, places in zip(reversed(blocks), reversed(code), strict=True):
            awaited = set(everything.intersection(*(before[number] for number in block.following)))
            for place in reversed(places):
                if place.step.row.effect in LOADS and not place.writes <= awaited:
                    late.add(id(place.step))  # what is awaited only becomes less
                place.go_back(awaited)
            if awaited != before[block.index]:
                before[block.index], changed = frozenset(awaited), True
    return frozenset(late)


class _Place(NamedTuple):
    """An instruction and the registers that it reads and writes."""

    step: Step
    reads: set[str]
    writes: set[str]

    @classmethod
    def of(cls, step: Step) -> _Place:
        reads, writes = reads_and_writes(step)
        return cls(step, reads | writes if step.guard is not None else reads, writes)

    def go_back(self, awaited: set[str]) -> None:
        """From the registers that are read on all ways after the instruction make those of before it."""
        if arrives(self.step) or self.step.row.effect is Effect.BLOCK_BARRIER:
            awaited.clear()
        is_copy = self.step.guard is None and _is_copy(self.step)
        reads = set() if is_copy and awaited.isdisjoint(self.writes) else self.reads
        awaited -= self.writes
        awaited |= reads


def _is_copy(step: Step) -> bool:
    return step.row.meaning in _COPIES or (step.row.meaning is cvt and not step.modifiers.get("sat"))
