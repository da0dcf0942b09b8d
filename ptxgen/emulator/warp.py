"""What the lanes of a warp tell each other, as LLVM IR: lane numbers, shuffles, ballots, the carry flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.emulator.emitter import Emitter, scalar, vector
from ptxgen.emulator.sanitizer import FindingKind
from ptxgen.emulator.values import Lanes, known_lanes, known_value
from ptxgen.isa.algebra import Value
from ptxgen.types import PRED, U32, U64

if TYPE_CHECKING:
    from ptxgen.emulator.lanes import LaneAlgebra

FIRST_LANES = tuple(range(32))


class WarpOperations:
    e: Emitter
    whole: LaneAlgebra
    mask: str
    sanitize: bool

    def lane(self) -> Lanes:
        return known_value(self.whole, U32, FIRST_LANES)

    def mask_vector(self, mask: str) -> Lanes:
        return Lanes(self.whole, PRED, self.e.emit(f"bitcast i32 {mask} to <32 x i1>"), False)

    def active(self) -> Lanes:
        return self.mask_vector(self.mask)

    def from_lane(self, a: Value, source: Value | Sequence[int]) -> Lanes:
        value = self.whole.like(a, U32)
        if not isinstance(source, Lanes):
            source = known_value(self.whole, U32, tuple(source))  # type: ignore[arg-type]
        if value.uniform:
            return value
        kind, element = value.llvm_type, scalar(value.type)
        lanes = known_lanes(source)
        if lanes is not None:
            order = ", ".join(f"i32 {n & 31}" for n in lanes)
            name = self.e.emit(f"shufflevector {kind} {value.name}, {kind} poison, <32 x i32> <{order}>")
            return Lanes(self.whole, value.type, name, False, loose=value.loose)
        if source.uniform:
            name = self.e.emit(f"extractelement {kind} {value.name}, i32 {(source & 31).name}")
            return Lanes(self.whole, value.type, name, True, loose=value.loose)
        function = f"pick.{element}"
        if function not in self.e.functions:
            self.e.functions[function] = _pick(function, element)
        name = self.e.emit(f"call {kind} @{function}({kind} {value.name}, <32 x i32> {self.whole.spread(source)})")
        return Lanes(self.whole, value.type, name, False, loose=value.loose)

    def ballot(self, p: Value) -> Lanes:
        value = self.whole.like(p, PRED)
        if value.known == 1:
            return Lanes(self.whole, U32, self.mask, True)
        bits = self.e.emit(f"bitcast <32 x i1> {self.whole.spread(value)} to i32")
        return Lanes(self.whole, U32, self.e.emit(f"and i32 {bits}, {self.mask}"), True)

    def check_shuffle(self, sources: Value, valid: Value, member_mask: Value) -> None:
        if not self.sanitize:
            return
        here = Lanes(self.whole, U32, self.mask, True)
        members = self.whole.bits(member_mask, U32)
        usable = members & here
        source_there = ((usable >> self.whole.like(sources, U32)) & 1) == 1
        self_member = ((members >> self.lane()) & 1) == 1
        wrong = self.whole.ballot(self.whole.like(valid, PRED) & ~source_there)
        outside = self.whole.ballot(~self_member)
        origin = self.whole.spread(self.whole.convert(sources, U64))
        self.whole.report_lanes(FindingKind.SHUFFLE, wrong.name, origin, 0)
        self.whole.report_lanes(FindingKind.MEMBER, outside.name, origin, 0)

    def carry(self) -> Lanes:
        return self.whole.read_special_register("%carry", PRED)

    def set_carry(self, p: Value) -> None:
        self.whole.write_special_register("%carry", self.whole.like(p, PRED))

    def no_effect(self) -> None:
        return None


def _pick(name: str, element: str) -> str:
    kind, wide = vector(element), "i8" if element == "i1" else element
    held = vector(wide)
    widen = [f"  %w = zext {kind} %v to {held}"] if element == "i1" else []
    source = "%w" if element == "i1" else "%v"
    narrow = [f"  %t = trunc {held} %r to {kind}", f"  ret {kind} %t"] if element == "i1" else [f"  ret {held} %r"]
    return "\n".join(
        [
            f"define internal {kind} @{name}({kind} %v, <32 x i32> %s) noinline {{",
            "entry:",
            f"  %from = alloca {held}, align 64",
            f"  %to = alloca {held}, align 64",
            "  %at = alloca <32 x i32>, align 64",
            *widen,
            f"  store {held} {source}, ptr %from, align 64",
            "  %low = and <32 x i32> %s, splat (i32 31)",
            "  store <32 x i32> %low, ptr %at, align 64",
            "  br label %loop",
            "loop:",
            "  %i = phi i32 [ 0, %entry ], [ %n, %loop ]",
            "  %ap = getelementptr i32, ptr %at, i32 %i",
            "  %a = load i32, ptr %ap",
            f"  %fp = getelementptr {wide}, ptr %from, i32 %a",
            f"  %x = load {wide}, ptr %fp",
            f"  %tp = getelementptr {wide}, ptr %to, i32 %i",
            f"  store {wide} %x, ptr %tp",
            "  %n = add i32 %i, 1",
            "  %more = icmp ult i32 %n, 32",
            "  br i1 %more, label %loop, label %end",
            "end:",
            f"  %r = load {held}, ptr %to, align 64",
            *narrow,
            "}",
        ]
    )
