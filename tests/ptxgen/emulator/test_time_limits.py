"""Kernels that do not end, of every kind: what is told of them and when. And that pauses, by which a launch is stopped, change
nothing of what a kernel does."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from inspect import signature

import numpy as np
import pytest

from ptxgen import emulator
from ptxgen.emulator import EmulationError
from ptxgen.emulator.layout import PAUSED, ContextWord
from ptxgen.emulator.scratch import Scratch
from ptxgen.emulator.watch import Run
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

START = "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\n"
STORES = "\n".join(f"st.global.u32 [%rd1+{4 * i}], %r1;" for i in range(64))
SPIN = "L1:\natom.global.cas.b32 %r2, [%rd1], 1, 2;\nsetp.ne.u32 %p1, %r2, 1;\n@%p1 bra L1;"
NEVER = """mov.u64 %rd2, cell;
cvt.u32.u64 %r3, %rd2;
setp.ne.u32 %p2, %r1, 0;
@%p2 bra L0;
mbarrier.init.shared.b64 [%r3], 2;
L0:
bar.sync 0;
L1:
mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;
@!%p1 bra L1;"""
ENDLESS = {
    "a branch to itself": ("L1:\nbra L1;", 1, 1024),
    "many stores": (f"L1:\n{STORES}\nbra L1;", 1, 1024),
    "a lock that nobody opens": (SPIN, 4, 256),
    "threads that wait for others": ("@%p1 bra L2;\n" + SPIN + "\nL2:", 1, 64),
    "a barrier in a loop": ("L1:\nbar.sync 0;\nbra L1;", 1, 1024),
    "sleep in a loop": ("L1:\nnanosleep.u32 100;\nbra L1;", 1, 64),
    "an mbarrier that is never complete": (NEVER, 1, 64),
    "two thousand million blocks": ("", (1 << 31) - 1, 64),
}


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", [True, False])
@pytest.mark.parametrize("name", ENDLESS)
def test_a_kernel_that_does_not_end_is_stopped_in_time_and_told_where_it_was(name: str, sanitize: bool) -> None:
    body, grid, block = ENDLESS[name]
    text = kernel(START + body, "u64", shared=".shared .align 8 .b64 cell;")
    emulator.compile_module(text, sanitize=sanitize).kernel("k")
    started = time.monotonic()
    try:
        found = emulator.run(text, "k", grid, block, [np.zeros(64, np.uint32)], sanitize=sanitize, seconds=0.4)
    except EmulationError as error:
        found = [error.finding]
    assert time.monotonic() - started < 5
    (stopped,) = (one for one in found if one.kind != "race")
    assert stopped.kind in ("timeout", "endless loop", "deadlock"), stopped
    assert stopped.ptx_line >= FIRST_LINE
    if stopped.kind == "timeout":
        assert "was still running after 0." in stopped.message
        assert stopped.message.endswith("s; its limit is seconds=0.4, and more, or None, lets it run on")


def test_what_runs_a_kernel_gives_it_ten_seconds_unless_told_otherwise() -> None:
    assert {signature(one).parameters["seconds"].default for one in (emulator.run, emulator.run_together)} == {10.0}


def test_a_loop_that_has_more_time_may_take_more_steps() -> None:
    text = kernel("mov.u32 %r1, 0;\nL1:\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 17000000;\n@%p1 bra L1;")
    (found,) = emulator.run(text, "k", 1, 32, [])
    assert found.kind == "endless loop"
    for seconds in (60, None):
        assert not emulator.run(text, "k", 1, 32, [], seconds=seconds)


COUNTER = """ld.param.u64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r5, %ctaid.x;
mov.u32 %r2, 0;
mov.u32 %r3, 0;
L1:
add.u32 %r3, %r3, 1;
st.global.u32 [%rd1], %r3;
add.u32 %r2, %r2, 1;
and.b32 %r4, %r1, 1;
setp.eq.u32 %p2, %r4, 0;
@%p2 bra L2;
xor.b32 %r3, %r3, 1;
L2:
ld.global.u32 %r3, [%rd1];
setp.lt.u32 %p1, %r2, ROUNDS;
@%p1 bra L1;
bar.sync 0;
mad.lo.u32 %r1, %r5, 96, %r1;
mul.wide.u32 %rd2, %r1, 4;
add.u64 %rd2, %rd2, %rd1;
st.global.u32 [%rd2+4], %r3;"""
"""What is counted depends on which warp has its turn when."""


@pytest.mark.parametrize("cooperative", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("sanitize", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_pauses_change_nothing_of_what_a_kernel_does(
    cooperative: bool, sanitize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kernel(COUNTER.replace("ROUNDS", "9000" if sanitize else "70000"), "u64")

    def seen() -> tuple[list[int], list[str]]:
        x = np.zeros(2 * 96 + 1, np.uint32)
        found = emulator.run(text, "k", 2, 96, [x], sanitize=sanitize, seed=1, cooperative=cooperative)
        return x.tolist(), list(map(str, found))

    undisturbed, chance, pauses = seen(), random.Random(1), 0

    def paused(run: Run, scratch: Scratch, first: int, last: int) -> int:
        nonlocal pauses
        context = scratch.context
        context[ContextWord.LIMIT] = chance.choice((0, 1, 900, 3000, context[ContextWord.QUANTUM]))
        status = run(scratch.address, first, last)
        pauses += status == PAUSED and context[ContextWord.WARP_AT] > 0
        return status

    for place in ("workers", "together"):
        monkeypatch.setattr(f"ptxgen.emulator.{place}.call", paused)
    assert seen() == undisturbed
    assert pauses > 10


INTERRUPTED = """
import signal, sys, time
import numpy as np
from ptxgen.emulator import compile_module
from tests.ptxgen.emulator.test_time_limits import START, STORES, kernel

signal.signal(signal.SIGINT, signal.default_int_handler)
k = compile_module(kernel(START + "L1:" + STORES + "bra L1;", "u64"), sanitize=True).kernel("k")
print("running", flush=True)
try:
    k.launch(1, 1024, np.zeros(64, np.uint32).ctypes.data.to_bytes(8, "little"), seconds=60)
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_loop_of_checked_stores_within_two_seconds() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    time.sleep(0.5)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert float(said) - sent < 2
