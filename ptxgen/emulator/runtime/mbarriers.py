"""Mbarriers: a word of fields (`_Part`) each. A phase waits for arrivals and for bytes of copies; once it waits for neither,
the next begins, with the other parity and as many arrivals as the mbarrier was made for."""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.emulator.layout import ContextWord
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.handovers import BYTES, complete_phase, note_arrival, number_of
from ptxgen.emulator.runtime.reports import report
from ptxgen.emulator.runtime.views import Context
from ptxgen.emulator.sanitizer import FindingKind
from ptxgen.target import WARP_SIZE


class _Part(NamedTuple):
    """Bits of an mbarrier's word."""

    shift: int
    bits: int

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    @property
    def places(self) -> int:
        return self.mask << self.shift

    def of(self, word: IrValue) -> IrValue:
        return word >> self.shift & self.mask

    def put(self, word: IrValue, number: IrValue) -> IrValue:
        return word & ~self.places | (number & self.mask) << self.shift


PENDING, EXPECTED, TO_COPY, PARITY, _MARK = (_Part(*p) for p in ((0, 20), (20, 20), (40, 21), (61, 1), (62, 2)))
"""Arrivals that the phase waits for, those of each phase, bytes that it waits for, its parity, and what memory that nobody
wrote (all ones), or that holds zeros, has not."""


@runtime_function("i1", place="ptr", word="i64")
def settle(b: Builder, place: IrValue, word: IrValue) -> None:
    """Store an mbarrier; if its phase waits for nothing more, the next begins. Whether it does."""
    expected = EXPECTED.of(word)
    following = PENDING.put(word ^ PARITY.places, expected)
    is_open = (word & (PENDING.places | TO_COPY.places)) != 0
    place.store(is_open.select(word, following))
    b.ret(~is_open)


@runtime_function("i1", context="ptr", state="ptr", line="i32", lane="i32", address="i64")
def is_mbarrier(b: Builder, context: IrValue, state: IrValue, line: IrValue, lane: IrValue, address: IrValue) -> None:
    """Whether there is an mbarrier; reports it if there is none. Of memory that nothing wrote, `check` has told."""
    word = address.as_pointer().load("i64")
    with b.when(_MARK.of(word) == 1):
        b.ret(1)
    with b.when(word != -1):
        report(b, context, state, FindingKind.MBARRIER, line, lane, address, -1, BYTES)
    b.ret(0)


@runtime_function("void", addresses="<32 x i64>", lanes="i32", counts="<32 x i32>")
def make_mbarriers(b: Builder, addresses: IrValue, lanes: IrValue, counts: IrValue) -> None:
    """Each lane of a mask makes an mbarrier."""
    table, numbers = b.table(addresses), b.table(counts)
    with b.each_lane(lanes) as (lane, _):
        count = b.entry(numbers, lane, "i32").resized("i64") & PENDING.mask
        b.entry(table, lane, "i64").as_pointer().store(count | count << EXPECTED.shift | 1 << _MARK.shift)


@runtime_function("<32 x i64>", context="ptr", state="ptr", addresses="<32 x i64>", lanes="i32", bytes="<32 x i32>", line="i32")
def arrive_expecting(
    b: Builder, context: IrValue, state: IrValue, addresses: IrValue, lanes: IrValue, bytes: IrValue, line: IrValue
) -> None:
    """Each lane of a mask has a phase wait for its bytes, and arrives. Gives the words before."""
    table, more = b.table(addresses), b.table(bytes)
    before = b.table(b.number(-1, "i64").splat())
    with b.each_lane(lanes) as (lane, every):
        address = b.entry(table, lane, "i64")
        with b.when(~is_mbarrier(b, context, state, line, lane, address)):
            every.go_on()
        place = address.as_pointer()
        word = place.load("i64")
        before.at(lane.resized("i64"), "i64").store(word)
        with b.when(PENDING.of(word) == 0):
            report(b, context, state, FindingKind.ARRIVED, line, lane, address, -1, BYTES)
            every.go_on()
        expecting = TO_COPY.put(word, TO_COPY.of(word) + b.entry(more, lane, "i32").resized("i64"))
        sanitised = Context(context)[ContextWord.FINDINGS] != 0
        with b.when(sanitised):
            note_arrival(b, context, state, number_of(b, context, address), lane)
        completes = settle(b, place, expecting - 1)
        with b.when(completes & sanitised):
            complete_phase(b, context, number_of(b, context, address))
    b.ret(before.load(f"<{WARP_SIZE} x i64>", 64))
