"""Bulk copies from global to shared memory and the mbarriers that say when they are done, on sm_90 and later: rows of PTX ISA
9.7.9.25.4 and 9.7.13.15."""

from __future__ import annotations

from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect, LaneResult
from ptxgen.isa.opcode import operands
from ptxgen.isa.operands import Address
from ptxgen.isa.units import Unit

mbarrier = partial(table.instruction, effect=Effect.MBARRIER, unit=Unit.SHARED)

SPACES = ("shared", "shared::cta")


@mbarrier(
    "mbarrier.init.{space}.b64",
    space=SPACES,
    defaults={"space": "shared"},
    sm=80,
    ptx=(7, 0),
    needs={"space=shared::cta": (80, (7, 8))},
    name="mbarrier_init",
    bounds={"count": range(1, 1 << 20)},
    section="9.7.13.15.9",
)
@operands(a="addr", count="u32")
def mbarrier_init(v: Algebra, a: Address, count: Number, space: str) -> None:
    """Make an mbarrier of the 8 bytes at [a], each of whose phases waits for `count` arrivals."""
    v.make_mbarrier(a, count)


@mbarrier(
    "mbarrier.arrive.expect_tx.{space}.b64",
    space=SPACES,
    lanes=LaneResult.MIXED,
    defaults={"space": "shared::cta"},
    sm=90,
    ptx=(8, 0),
    name="mbarrier_arrive_expect_tx",
    section="9.7.13.15.13",
)
@operands(d="b64", a="addr", tx="u32")
def mbarrier_arrive_expect_tx(v: Algebra, a: Address, tx: Number, space: str) -> Number:
    """Make the phase of the mbarrier [a] expect `tx` more bytes of bulk copies, then arrive; d is the state before."""
    return v.arrive_expecting(a, tx)


@mbarrier(
    "mbarrier.try_wait.parity.{space}.b64",
    space=SPACES,
    lanes=LaneResult.MIXED,
    defaults={"space": "shared::cta"},
    sm=90,
    ptx=(7, 8),
    name="mbarrier_try_wait_parity",
    bounds={"parity": (0, 1)},
    section="9.7.13.15.16",
)
@operands(d="pred", a="addr", parity="u32")
def mbarrier_try_wait_parity(v: Algebra, a: Address, parity: Number, space: str) -> Number:
    """Whether the phase of this parity, the current or the last one, is complete at the mbarrier [a]: what arrived and was
    copied may then be read. It waits for a limited time, so call it in a loop."""
    return v.try_wait(a, parity)


@table.instruction(
    "cp.async.bulk.{to}.global.mbarrier::complete_tx::bytes",
    to=("shared::cluster",),
    defaults={"to": "shared::cluster"},
    sm=90,
    ptx=(8, 0),
    bounds={"size": range(0, 1 << 20, 16)},
    name="cp_async_bulk",
    effect=Effect.BULK_COPY,
    unit=Unit.GLOBAL,
    section="9.7.9.25.4.1",
)
@operands(a="shared addr", b="global addr", size="u32", barrier="shared addr")
def cp_async_bulk(v: Algebra, a: Address, b: Address, size: Number, barrier: Address, to: str) -> None:
    """Start to copy `size` bytes, a multiple of 16, from [b] to shared memory [a], both at multiples of 16. Completion counts
    the bytes at the mbarrier [barrier]."""
    v.copy_bulk(a, b, size, barrier)


@table.instruction(
    "fence.mbarrier_init.release.cluster",
    sm=90,
    ptx=(8, 0),
    name="fence_mbarrier_init",
    effect=Effect.PROXY_FENCE,
    unit=Unit.CONTROL,
    section="9.7.13.4",
)
def fence_mbarrier_init(v: Algebra) -> None:
    """Let bulk copies see the mbarriers that the thread has made before."""
    v.no_effect()
