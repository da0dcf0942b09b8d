"""How `ptxgen conform` runs its checks: several kernels at once, in order, and in little time."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from multiprocessing import get_context

import pytest

from ptxgen.conformance.report import Check, side_by_side
from ptxgen.errors import PtxGenError

SECONDS, PROCESSORS = 10, 2


def fails() -> None:
    raise ValueError("wrong")


def passes() -> None:
    pass


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor runs one kernel's checks after the other's")
def test_checks_of_two_kernels_run_at_the_same_time_and_come_in_order() -> None:
    both = get_context("fork").Barrier(2, timeout=60)  # opens only if two processes are in it at once

    def waits() -> None:
        both.wait()

    checks = [
        Check("first", "waits", waits), Check("first", "fails", fails),
        Check("second", "waits", waits), Check("second", "passes", passes),
    ]  # fmt: skip
    results = list(side_by_side(checks))
    assert [(one.subject, one.check, one.passed) for one in results] == [
        ("first", "waits", True), ("first", "fails", False), ("second", "waits", True), ("second", "passes", True),
    ]  # fmt: skip
    assert "ValueError: wrong" in results[1].reason


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one processor there is no process but this one")
def test_a_process_that_dies_is_an_error_and_not_a_wait_for_ever() -> None:
    checks = [Check("first", "passes", passes), Check("second", "dies", dies), Check("third", "passes", passes)]
    with pytest.raises(PtxGenError, match="a process that ran checks was ended"):
        list(side_by_side(checks))


@pytest.mark.slow
def test_a_gemv_kernel_is_checked_within_ten_seconds_of_two_processors() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ptxgen.conformance", "q4k_gemv"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert took < SECONDS * PROCESSORS, f"{took:.1f} s"  # 6.5 when this was written; neighbours do not count
