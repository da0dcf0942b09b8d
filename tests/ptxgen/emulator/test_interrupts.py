"""Launches that are thrown away: by Ctrl-C at any moment, by their time, by an error; and what a fork leaves of the threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ptxgen.emulator import EmulationError, compile_module, run
from ptxgen.errors import ArgumentError
from tests.ptxgen.emulator.ptx import kernel

FILL = kernel(
    """ld.param.u64 %rd1, [p0];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    mov.u32 %r5, 0;
    L1:
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd3], %r5;
    setp.lt.u32 %p1, %r5, 40;
    @%p1 bra L1;""",
    "u64",
)
"""40 in every element, written late."""
LOOP = kernel("L1:\nbra L1;", "u64")

STORM = """
import random, signal, sys, time
import numpy as np
from ptxgen.emulator import compile_module
from tests.ptxgen.emulator.test_interrupts import FILL

def interrupt(number, frame):
    while frame is not None and frame.f_code.co_name != "thrown_away":
        frame = frame.f_back
    if frame is not None:
        raise KeyboardInterrupt

def thrown_away(x):
    kernel.launch(x.size // 64, 64, x.ctypes.data.to_bytes(8, "little"), workers=3)

kernel = compile_module(FILL).kernel("k")
x = np.zeros(1 << 19, np.uint32)
for _ in range(2):
    started = time.perf_counter()
    thrown_away(x)  # measures, so that the next ones are spread
took = time.perf_counter() - started
signal.signal(signal.SIGALRM, interrupt)
chance, interrupted = random.Random(1), 0
for turn in range(150):
    x = np.zeros(1 << 19, np.uint32)
    # one interrupt in half of the turns, one a millisecond (which hits the waiting, too) in the others
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.01, 0.9) * took, 0.001 * (turn % 2))
    try:
        thrown_away(x)
    except KeyboardInterrupt:
        interrupted += 1
        x.fill(7)
        after = x.copy()
        del x
        y = np.full(1 << 19, 5, np.uint32)  # often where x was
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert (after == 7).all() and (y == 5).all()
    signal.setitimer(signal.ITIMER_REAL, 0)
x = np.zeros(1 << 19, np.uint32)
thrown_away(x)
assert (x == 40).all()
scratches = [s.address for free in kernel._scratch.values() for s in free]
assert len(scratches) == len(set(scratches))
print(interrupted)
"""


@pytest.mark.slow
def test_launches_interrupted_at_any_moment_leave_no_thread_behind_and_no_memory_changed() -> None:
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 50


@pytest.mark.parametrize("options", [["--no-sanitize"], ["--sanitize"]])
def test_ctrl_c_ends_a_launch_of_two_thousand_million_blocks_at_once(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(kernel("mov.u32 %r1, %tid.x;"))
    words = ["run", str(path), "--grid", "2147483647", "--block", "64", "--timeout", "280", *options]
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import ptxgen.emulator.workers as workers\nfrom ptxgen.commands.cli import main\n"
        "plain = workers.run_blocks\n"
        "def told(*given):\n    print('running', flush=True)\n    return plain(*given)\n"
        f"import ptxgen.emulator.machine as machine\nmachine.run_blocks = told\nmain({words!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    time.sleep(0.2)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert (process.returncode, said.strip()) == (130, "")
    assert time.monotonic() - started < 30  # a pause and the end of the interpreter; the launch would take minutes


@pytest.mark.parametrize("workers", [1, 3])
def test_a_launch_that_is_out_of_time_ends_and_the_next_one_is_whole(workers: int) -> None:
    k = compile_module(FILL).kernel("k")
    x = np.zeros(1 << 18, np.uint32)
    pointer = x.ctypes.data.to_bytes(8, "little")
    for _ in range(2):
        k.launch(1 << 12, 64, pointer, workers=workers)
    with pytest.raises(EmulationError, match=r"timeout: k, block \(\d+,\d+,0\) was still running after 0\.\d s"):
        k.launch((1 << 12, 1 << 15), 64, pointer, workers=workers, seconds=0.05)
    x.fill(0)
    assert not k.launch(1 << 12, 64, pointer, workers=workers, seconds=60)
    assert np.all(x == 40)


def test_a_block_that_pauses_goes_on_where_it_was() -> None:
    body = """ld.param.u64 %rd1, [p0];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r5, 0;
    mov.u64 %rd4, cell;
    st.shared.u32 [%rd4], %r2;
    L1:
    add.u32 %r5, %r5, 1;
    bar.sync 0;
    setp.lt.u32 %p1, %r5, 3000;
    @%p1 bra L1;
    L2:
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r5, 20000;
    @%p1 bra L2;
    ld.shared.u32 %r6, [%rd4];
    add.u32 %r5, %r5, %r6;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r5;"""
    text = kernel(body, "u64", shared=".shared .align 4 .u32 cell;")
    for sanitize in (True, False):
        x = np.zeros(3, np.uint32)
        found = run(text, "k", 3, 32, [x], sanitize=sanitize)
        assert [f for f in found if f.kind != "race"] == []
        assert x.tolist() == [20000, 20001, 20002]


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_launch_has_some_time(seconds: float) -> None:
    with pytest.raises(ArgumentError, match=f"a launch needs more than 0 seconds, got {seconds}"):
        run(LOOP, "k", 1, 32, [np.zeros(1, np.uint32)], seconds=seconds)


def test_time_that_is_over_is_a_finding_that_says_where() -> None:
    started = time.monotonic()
    (found,) = run(LOOP, "k", 1, 1024, [np.zeros(1, np.uint32)], seconds=0.2)
    assert (found.kind, found.ptx_text) == ("timeout", "bra L1;")
    assert time.monotonic() - started < 60


def test_a_seed_orders_no_more_blocks_than_a_list_can_hold() -> None:
    with pytest.raises(ArgumentError, match="a seed orders up to 4194304 blocks; the grid has 2147483647"):
        run(LOOP, "k", (1 << 31) - 1, 32, [np.zeros(1, np.uint32)], seed=1)


FORK = """
import os, sys
import numpy as np
from ptxgen.emulator import compile_module
from tests.ptxgen.emulator.test_interrupts import FILL

kernel = compile_module(FILL).kernel("k")

def launch():
    x = np.zeros(1 << 18, np.uint32)
    kernel.launch(1 << 12, 64, x.ctypes.data.to_bytes(8, "little"), workers=3)
    assert (x == 40).all()

for _ in range(2):
    launch()
child = os.fork()
launch()
if child == 0:
    compile_module(FILL, sanitize=True).kernel("k")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_forks_launches_on_both_sides() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
