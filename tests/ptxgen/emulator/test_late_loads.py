"""Which loads count as on their way at an arrival, by the text."""

from __future__ import annotations

import pytest

from ptxgen.emulator.flow import flow
from ptxgen.emulator.late_loads import late_loads
from ptxgen.emulator.parse import parse
from tests.ptxgen.emulator.ptx import kernel

ARRIVE = "mbarrier.arrive.expect_tx.shared::cta.b64 %rd9, [bar], 0;"
LOAD = "ld.shared.v2.u32 {%r1, %r2}, [cells];"
USE = "add.u32 %r3, %r1, %r2;"


@pytest.mark.parametrize(
    ("lines", "late"),
    [
        ((LOAD, USE, ARRIVE), False),
        ((LOAD, ARRIVE, USE), True),
        ((LOAD, "add.u32 %r3, %r1, 1;", ARRIVE, USE), True),  # of half of it
        (("ld.shared.v2.u32 {%r1, _}, [cells];", "add.u32 %r3, %r1, 1;", ARRIVE), False),
        ((LOAD, ARRIVE), True),
        ((LOAD, USE), False),  # no arrival
        ((LOAD, "bar.sync 0;", USE, ARRIVE), True),  # another thread may arrive
        ((LOAD, "bar.warp.sync -1;", USE, ARRIVE), False),
        ((LOAD, "mov.b64 %rd1, {%r1, %r2};", ARRIVE), True),
        ((LOAD, "mov.b64 %rd1, {%r1, %r2};", "add.u64 %rd2, %rd1, 1;", ARRIVE), False),
        ((LOAD, "mov.b64 %rd1, {%r1, %r2};", USE, ARRIVE), False),
        ((LOAD, "cvt.u64.u32 %rd1, %r1;", "cvt.u64.u32 %rd2, %r2;", ARRIVE), True),
        ((LOAD, "mov.u32 %r1, 0;", USE, ARRIVE), True),  # of another value
        ((LOAD, "@%p1 bra PAST;", USE, "PAST:", ARRIVE), True),
        ((LOAD, "@%p1 bra ELSE;", USE, "bra PAST;", "ELSE:", "sub.u32 %r3, %r1, %r2;", "PAST:", ARRIVE), False),
        (("AGAIN:", ARRIVE, LOAD, "@%p1 bra AGAIN;", USE), True),
        (("AGAIN:", USE, ARRIVE, LOAD, "@%p1 bra AGAIN;"), False),
        (("AGAIN:", LOAD, "@%p1 bra AGAIN;", USE, ARRIVE), True),  # of the last round only
        (("AGAIN:", LOAD, USE, "@%p1 bra AGAIN;", ARRIVE), False),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, tuple) else None,
)
def test_a_load_is_late_if_some_way_to_an_arrival_does_not_read_all_of_it(lines: tuple[str, ...], late: bool) -> None:
    shared = ".shared .align 8 .b8 bar[8];\n.shared .align 16 .b8 cells[16];"
    blocks = flow(parse(kernel("\n".join(lines), shared=shared)), "k").blocks
    assert bool(late_loads(blocks)) is late
