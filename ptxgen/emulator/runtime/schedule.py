"""What runs the warps of a block and the blocks of a launch: turns, and what ends them."""

from __future__ import annotations

import platform

from ptxgen.emulator.layout import (
    BARRIERS,
    BLOCKED,
    DEADLOCKED,
    ENDLESS,
    FINISHED,
    PAUSED,
    SLEPT,
    TRAPPED,
    YIELDED,
    ContextWord,
    State,
)
from ptxgen.emulator.runtime.barriers import release
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.bulk_copies import report_unwaited
from ptxgen.emulator.runtime.function import KERNEL, runtime_function
from ptxgen.emulator.runtime.product_checks import compare_warps
from ptxgen.emulator.runtime.reports import report
from ptxgen.emulator.runtime.views import Context, WarpState
from ptxgen.emulator.sanitizer import FindingKind

_DEFAULT_MXCSR = 0x1F80  # every exception masked, to nearest, subnormals kept
_BLOCKED_COST = 1
SLEEP_COST = 64
YIELD_COST = 1024
"""What a turn takes from the budget: _BLOCKED_COST where warps only meet at barriers, SLEEP_COST where some wait for others
asleep, YIELD_COST where some warp used its quantum up. A block has had its turn, and pauses, when it has taken as much as
ContextWord.TURN, and when only those that sleep could go on: then its turn has cost no more than SLEEP_COST if nothing else has
happened in it. Within a turn it pauses when it is asked to (ContextWord.LIMIT), and goes on as if it had not."""
UNWRITTEN_BYTE = 0xFF
"""What shared and local memory holds before anything is written: NaN."""


@runtime_function("i32", part=KERNEL, state="ptr", context="ptr")
def warp(b: Builder, state: IrValue, context: IrValue) -> None:
    """Run a warp until all its lanes wait or have ended, it has used its quantum up, or it traps: the kernel's own code."""


def _ordered(b: Builder, order: IrValue, index: IrValue) -> IrValue:
    """order[index], or the index itself where there is no order."""
    place = b.memory("i64")
    place.store(index)
    with b.when(order != 0):
        place.store(order.as_pointer().at(index, "i64").load("i64"))
    return place.load("i64")


def _is_to_pause(c: Context) -> IrValue:
    """Whether another thread wants this call to come back."""
    return c.pointer.at(ContextWord.LIMIT, "i64").load("i64", volatile=True) == 0


@runtime_function("i32", context="ptr")
def run_block(b: Builder, context: IrValue) -> None:
    """Turns of the block at hand until it ends or pauses: in each, every warp runs; if all that have not ended wait or sleep,
    barriers are released."""
    c = Context(context)
    paused_at = c[ContextWord.WARP_AT]
    begun = (paused_at != 0).select(c[ContextWord.BEGUN], c[ContextWord.TURNS])
    warps, state_bytes, order = c[ContextWord.WARPS].as_pointer(), c[ContextWord.STATE_BYTES], c[ContextWord.WARP_ORDER]
    turns, seen, idle, first = b.memory("i64"), b.memory("i32"), b.memory("i1"), b.memory("i64")
    turns.store(c[ContextWord.TURNS])
    seen.store(c[ContextWord.SEEN].resized("i32"))
    first.store((paused_at != 0).select(paused_at - 1, 0))
    c[ContextWord.WARP_AT] = c[ContextWord.SEEN] = 0

    def pause(index: IrValue) -> None:
        c[ContextWord.WARP_AT], c[ContextWord.SEEN] = index + 1, seen.load("i32").resized("i64")
        c[ContextWord.BEGUN], c[ContextWord.TURNS] = begun, turns.load("i64")
        b.ret(PAUSED)

    with b.loop() as (_, rounds):
        idle.store(0, "i1")
        start = first.load("i64")
        with b.loop(c[ContextWord.WARP_COUNT] - start) as (i, _):
            index = start + i
            with b.when((i != 0) & _is_to_pause(c)):
                pause(index)
            status = warp(b, warps.at(_ordered(b, order, index) * state_bytes), context)
            with b.when(status == TRAPPED):
                b.ret(TRAPPED)
            with b.when(status == PAUSED):
                pause(index)
            seen.store(seen.load("i32") | b.number(1) << status)
        statuses = seen.load("i32")
        seen.store(0)
        first.store(0, "i64")
        yields, sleeps, waits = ((statuses & 1 << kind) != 0 for kind in (YIELDED, SLEPT, BLOCKED))
        with b.when(~yields):
            with b.when(~(waits | sleeps)):
                with b.when(c[ContextWord.FINDINGS] != 0):
                    compare_warps(b, context)
                    report_unwaited(b, context)
                    report_without_wait(b, context)
                b.ret(FINISHED)
            idle.store(release(b, context))
            with b.when(idle.load("i1") & ~sleeps):
                b.ret(DEADLOCKED)
        rested = idle.load("i1").select(b.number(SLEEP_COST, "i64"), _BLOCKED_COST)
        turns.store(turns.load("i64") + yields.select(b.number(YIELD_COST, "i64"), rested))
        with b.when(turns.load("i64") > c[ContextWord.BUDGET]):
            b.ret(ENDLESS)
        with b.when(idle.load("i1") | (turns.load("i64") >= begun + c[ContextWord.TURN])):
            rounds.stop()
    c[ContextWord.TURNS] = turns.load("i64")
    b.ret(PAUSED)


@runtime_function("void", context="ptr")
def report_without_wait(b: Builder, context: IrValue) -> None:
    """At the end of a block of a dependent kernel: report it if no thread has waited for the kernels before. Were
    all blocks like it, the kernel could be over, and the next run, while those before it still do."""
    c = Context(context)
    waited = b.memory("i32")
    waited.store(0)
    warps = c[ContextWord.WARPS].as_pointer()
    with b.when(c[ContextWord.EARLY] == 0):
        b.ret()
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        waited.store(waited.load("i32") | WarpState(warps.at(warp * c[ContextWord.STATE_BYTES]))[State.WAITED])
    with b.when(waited.load("i32") == 0):
        zero = b.number(0, "i64")
        report(b, context, warps, b.number(FindingKind.NOT_WAITED), b.number(0), b.number(0), zero, zero, zero)


@runtime_function("void", context="ptr", index="i64")
def start_block(b: Builder, context: IrValue, index: IrValue) -> None:
    """Make the memory of the block, the `index`-th to run, what it is at its start."""
    c = Context(context)
    local_bytes = c[ContextWord.LOCAL_BYTES] * c[ContextWord.THREADS]
    b.fill(c[ContextWord.SHARED].as_pointer(), UNWRITTEN_BYTE, c[ContextWord.SHARED_BYTES])
    b.fill(c[ContextWord.LOCAL].as_pointer(), UNWRITTEN_BYTE, local_bytes)
    b.fill(c[ContextWord.ARRIVED].as_pointer(), 0, 4 * BARRIERS)
    with b.when(c[ContextWord.FINDINGS] != 0):
        b.fill(c[ContextWord.LOCAL_SHADOW].as_pointer(), 0, local_bytes)
        epoch = c[ContextWord.EPOCH] + 1
        c[ContextWord.EPOCH] = epoch
        c[ContextWord.FIRST_EPOCH] = epoch
        c[ContextWord.BARRIER_AT] = c[ContextWord.SERIAL]
        with b.when(index < c[ContextWord.BLOCK_EPOCHS_COUNT]):
            c[ContextWord.BLOCK_EPOCHS].as_pointer().at(index, "i32").store(epoch.resized("i32"))
    with b.loop(c[ContextWord.WARP_COUNT]) as (i, _):
        s = WarpState(c[ContextWord.WARPS].as_pointer().at(i * c[ContextWord.STATE_BYTES]))
        s[State.PCS] = s[State.FIRST_PCS]
        s[State.TICKS] = 0
        s[State.VOTERS] = 0
        s[State.ASYNC_COUNT] = 0
        s[State.WAITED] = 0
        s[State.PRODUCTS] = 0
        s[State.PRODUCT_STEPS] = 0
        s[State.BULK_COPIES] = 0
        s[State.MBARRIERS] = 0


@runtime_function("i32", context="ptr", first="i64", last="i64")
def run_blocks(b: Builder, context: IrValue, first: IrValue, last: IrValue) -> None:
    """Blocks first..last-1 of the launch, one after the other, until they end or one pauses."""
    c = Context(context)
    with b.loop(last - first) as (i, _):
        index = first + i
        block = _ordered(b, c[ContextWord.CTA_ORDER], index)
        c[ContextWord.CTAID_X] = block % c[ContextWord.NCTAID_X]
        c[ContextWord.CTAID_Y] = block // c[ContextWord.NCTAID_X] % c[ContextWord.NCTAID_Y]
        c[ContextWord.CTAID_Z] = block // c[ContextWord.NCTAID_X] // c[ContextWord.NCTAID_Y]
        with b.when((i != 0) & _is_to_pause(c)):
            c[ContextWord.NEXT] = index
            b.ret(PAUSED)
        with b.when((c[ContextWord.TURNS] == 0) & (c[ContextWord.WARP_AT] == 0)):
            start_block(b, context, index)
        status = run_block(b, context)
        with b.when(status == PAUSED):
            c[ContextWord.NEXT] = index
        with b.when(status != FINISHED):
            b.ret(status)
        c[ContextWord.TURNS] = 0
    b.ret(FINISHED)


@runtime_function("i32", context="ptr", first="i64", last="i64")
def run(b: Builder, context: IrValue, first: IrValue, last: IrValue) -> None:
    """`run_blocks` with subnormals kept and rounding to nearest, whatever some library left in this thread's control word."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        b.ret(run_blocks(b, context, first, last))
        return
    saved, plain = b.memory("i32"), b.memory("i32")
    plain.store(_DEFAULT_MXCSR)
    b.intrinsic("llvm.x86.sse.stmxcsr", "void", saved)
    b.intrinsic("llvm.x86.sse.ldmxcsr", "void", plain)
    status = run_blocks(b, context, first, last)
    b.intrinsic("llvm.x86.sse.ldmxcsr", "void", saved)
    b.ret(status)
