"""What the lanes of a warp tell each other, as LLVM IR: lane numbers, shuffles, ballots, the carry flag."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.emulator.emitter import scalar
from ptxgen.emulator.flow import CARRY
from ptxgen.emulator.registers import Registers
from ptxgen.emulator.runtime import reports, shuffles
from ptxgen.emulator.runtime.access import picker
from ptxgen.emulator.sanitizer import FindingKind
from ptxgen.emulator.values import Lanes, constant_lanes, constant_value
from ptxgen.isa.algebra import Number
from ptxgen.target import WARP_SIZE
from ptxgen.types import PRED, U32


class WarpOperations(Registers):
    """What lanes tell each other, and the sanitiser about themselves."""

    def active(self) -> Lanes:
        return Lanes(self, PRED, self.e.emit(f"bitcast i32 {self.mask} to <32 x i1>"), False)

    def from_lane(self, a: Number, source: Number | Sequence[int]) -> Lanes:
        value = self.like(a, U32)
        if not isinstance(source, Lanes):
            source = constant_value(self, U32, tuple(source))  # type: ignore[arg-type]
        if value.uniform:
            return value
        kind, element = value.llvm_type, scalar(value.type)
        lanes = constant_lanes(source)
        if lanes is not None:
            order = ", ".join(f"i32 {n % WARP_SIZE}" for n in lanes)
            name = self.e.emit(f"shufflevector {kind} {value.name}, {kind} poison, <32 x i32> <{order}>")
            return Lanes(self, value.type, name, False, loose=value.loose)
        if source.uniform:
            name = self.e.emit(f"extractelement {kind} {value.name}, i32 {(source & WARP_SIZE - 1).name}")
            return Lanes(self, value.type, name, True, loose=value.loose)
        name = self.e.call_runtime(picker(element), value.name, self.spread(source))
        return Lanes(self, value.type, name, False, loose=value.loose)

    def ballot(self, p: Number) -> Lanes:
        value = self.like(p, PRED)
        if value.constant == 1:
            return Lanes(self, U32, self.mask, True)
        bits = self.e.emit(f"bitcast <32 x i1> {self.spread(value)} to i32")
        return Lanes(self, U32, self.e.emit(f"and i32 {bits}, {self.mask}"), True)

    def check_shuffle(self, sources: Number, valid: Number, member_mask: Number) -> None:
        if not self.sanitize:
            return
        told = (self.bits(member_mask, U32), self.like(sources, U32), self.like(valid, PRED))
        self.e.call_runtime(shuffles.check_shuffle, "%c", "%s", self.line, self.mask, *map(self.spread, told))

    def carry(self) -> Lanes:
        return self.register(CARRY)

    def set_carry(self, p: Number) -> None:
        self.write(CARRY, self.like(p, PRED))

    def no_effect(self) -> None:
        return None

    def report_lanes(self, kind: FindingKind, lanes: str, addresses: str, extra: int | str) -> None:
        """Report `kind` for the lanes in a mask, with their addresses; does nothing for an empty mask."""
        self.e.call_runtime(reports.report_lanes, "%c", "%s", int(kind), self.line, lanes, addresses, extra)
