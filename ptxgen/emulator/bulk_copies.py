"""Bulk copies and mbarriers as LLVM IR: calls of the runtime (runtime/bulk_copies.py)."""

from __future__ import annotations

from ptxgen.emulator.layout import SLEPT
from ptxgen.emulator.memory import MemoryOperations
from ptxgen.emulator.runtime import bulk_copies, handovers, mbarriers
from ptxgen.emulator.runtime.check import access_word, check
from ptxgen.emulator.runtime.shadow import AccessKind
from ptxgen.emulator.sanitizer import SPACE_CODES
from ptxgen.emulator.values import Lanes
from ptxgen.isa.algebra import Number
from ptxgen.isa.effects import MemoryScope
from ptxgen.isa.operands import Address
from ptxgen.types import B64, PRED, U32

_MADE = access_word(AccessKind.STORE, 0, 0)  # not to be used before a barrier
_ARRIVED = access_word(AccessKind.ATOMIC, MemoryScope.BLOCK, MemoryScope.BLOCK)


class BulkCopyOperations(MemoryOperations):
    """Bulk copies, and the mbarriers that they tell."""

    def make_mbarrier(self, address: Address, count: Number) -> None:
        addresses, mask = self._mbarriers(address, _MADE)
        self.e.call_runtime(mbarriers.make_mbarriers, addresses, mask, self._numbers(count))

    def arrive_expecting(self, address: Address, bytes: Number) -> Lanes:
        addresses, mask = self._mbarriers(address, _ARRIVED)
        told = addresses, mask, self._numbers(bytes)
        return Lanes(self, B64, self.e.call_runtime(mbarriers.arrive_expecting, "%c", "%s", *told, self.line), False)

    def try_wait(self, address: Address, parity: Number) -> Lanes:
        """A warp with lanes for which it is false ends its turn at the next jump backwards, as one that sleeps: whom it waits
        for may be another."""
        e = self.e
        addresses, mask = self._mbarriers(address, bulk_copies.MBARRIER_READ)
        told = addresses, mask, self._numbers(parity)
        complete = e.call_runtime(bulk_copies.try_wait, "%c", "%s", *told, self.line)
        waits = e.emit(f"icmp ne i32 {complete}, {mask}")
        for memory, type, value in (("%ticks.m", "i64", "%quantum"), ("%tired.m", "i32", SLEPT)):
            before = e.emit(f"load {type}, ptr {memory}")
            e.do(f"store {type} {e.emit(f'select i1 {waits}, {type} {value}, {type} {before}')}, ptr {memory}")
        refused = e.emit(f"xor i32 {mask}, {self.mask}")  # they go on
        return Lanes(self, PRED, e.emit(f"bitcast i32 {e.emit(f'or i32 {complete}, {refused}')} to <32 x i1>"), False)

    def copy_bulk(self, destination: Address, source: Address, size: Number, barrier: Address) -> None:
        to, start, told = (
            self.host(space, a)[0] for space, a in (("shared", destination), ("global", source), ("shared", barrier))
        )
        for space in ("shared", "global"):
            self._notice(bulk_copies.UNIT, space)
        self._notice(handovers.BYTES, "shared")
        copies = self.spread(to), self.spread(start), self._numbers(size), self.spread(told)
        self.e.call_runtime(bulk_copies.queue_bulk_copies, "%c", "%s", self.mask, *copies, self.line)

    def _mbarriers(self, address: Address, word: int) -> tuple[str, str]:
        """The addresses, and the lanes of the mask that may access them so (`access_word`)."""
        where, _ = self.host("shared", address)
        addresses, mask = self.spread(where), self.mask
        if self.sanitize:
            self._notice(handovers.BYTES, "shared")
            space = SPACE_CODES["shared"]
            mask = self.e.call_runtime(check, "%c", "%s", addresses, mask, handovers.BYTES, space, word, self.line)
        return addresses, mask

    def _numbers(self, value: Number) -> str:
        return self.spread(self.like(value, U32))
