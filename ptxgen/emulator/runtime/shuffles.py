"""The check of a shuffle: whom it asks, and who takes part in it."""

from __future__ import annotations

from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.reports import report_lanes
from ptxgen.emulator.sanitizer import FindingKind
from ptxgen.target import WARP_SIZE

_LANES = f"<{WARP_SIZE} x i32>"


@runtime_function(
    "void", context="ptr", state="ptr", line="i32", lanes="i32", members=_LANES, sources=_LANES, valid=f"<{WARP_SIZE} x i1>"
)
def check_shuffle(
    b: Builder,
    context: IrValue,
    state: IrValue,
    line: IrValue,
    lanes: IrValue,
    members: IrValue,
    sources: IrValue,
    valid: IrValue,
) -> None:
    """Report the lanes of a mask whose source, where valid, is no member or not there, and those that are no members."""
    here, origins = lanes.splat(), sources.resized(f"<{WARP_SIZE} x i64>")
    there = ((members & here) >> sources) & 1
    own = (members >> b.vector(list(range(WARP_SIZE)), "i32")) & 1
    wrong, outside = valid.mask() & (there == 0).mask() & lanes, (own == 0).mask() & lanes
    report_lanes(b, context, state, FindingKind.SHUFFLE, line, wrong, origins, 0)
    report_lanes(b, context, state, FindingKind.MEMBER, line, outside, origins, 0)
