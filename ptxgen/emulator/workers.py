"""Runs the blocks of a launch, on one thread or several, so that it can be thrown away at any moment: by Ctrl-C, by its time,
by an error. What a launch needs and what its outcome means is machine.py's."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from ptxgen.emulator.layout import FINISHED, PAUSED, TIMED_OUT, ContextWord
from ptxgen.emulator.scratch import Scratch
from ptxgen.emulator.watch import Run, TimeLimit, call

_PIECES = 4  # a worker, so that uneven ones even out


def run_blocks(run: Run, scratches: list[Scratch], blocks: int, limit: TimeLimit) -> tuple[int, Scratch]:
    """Run all blocks of a launch, a worker a scratch.

    Returns what stopped the launch and the scratch of the block that did: FINISHED, a fault, or TIMED_OUT by the limit.
    However it is left, no thread uses a scratch, or the memory of an argument, any more.
    """
    several = len(scratches) > 1
    work = _Work(run, scratches[0], blocks, min(blocks, _PIECES * len(scratches)) if several else 1, limit)
    if not several:
        work.do(scratches[0])
        return work.outcome
    gate = (ctypes.c_int64 * 32)()  # a pthread_rwlock_t has 56 bytes on Linux
    address = ctypes.addressof(gate)
    _make_gate(address, None)
    try:
        for scratch in scratches[1:]:
            _pool.put(partial(work.help, scratch, gate))
        work.do(scratches[0])
        while work.inside:
            work.left.get()
    finally:
        # Waits for who is inside. Nothing here may be written in Python: a second Ctrl-C would leave it half done.
        work.stopped = True
        _shut_gate(address)
    if work.error is not None:
        raise work.error
    return work.outcome


class _Work:
    """The blocks of one launch in pieces, which any number of workers take until there are none or something is wrong."""

    def __init__(self, run: Run, scratch: Scratch, blocks: int, pieces: int, limit: TimeLimit) -> None:
        self.run = run
        self.pieces = [(blocks * i // pieces, blocks * (i + 1) // pieces) for i in reversed(range(pieces))]
        self.limit = limit
        self.stopped = False
        self.outcome: tuple[int, Scratch] = (FINISHED, scratch)
        self.error: BaseException | None = None
        self.inside: list[Scratch] = []
        self.left: SimpleQueue[None] = SimpleQueue()

    def help(self, scratch: Scratch, gate: ctypes.Array[ctypes.c_int64]) -> None:
        """A worker beside the thread that launches."""
        address = ctypes.addressof(gate)
        if _enter_gate(address):  # it is shut: the launch was over before this thread got to it
            return
        self.inside.append(scratch)
        try:
            self.do(scratch)
        except BaseException as error:
            self.error, self.stopped = error, True
        finally:
            self.inside.remove(scratch)
            _leave_gate(address)
            self.left.put(None)

    def do(self, scratch: Scratch) -> None:
        """Take pieces until there are none."""
        while not self.stopped:
            try:
                first, last = self.pieces.pop()
            except IndexError:
                return
            self._piece(scratch, first, last)

    def _piece(self, scratch: Scratch, first: int, last: int) -> None:
        while not self.stopped:
            if self.limit.is_over:
                self._stop(TIMED_OUT, scratch)
                return
            status = call(self.run, scratch, first, last)
            if status == FINISHED:
                return
            if status != PAUSED:
                self._stop(status, scratch)
                return
            first = scratch.context[ContextWord.NEXT]

    def _stop(self, status: int, scratch: Scratch) -> None:
        if not self.stopped:
            self.outcome = status, scratch
        self.stopped = True


class _Pool:
    """As many threads as the host has CPUs, started when they are first needed; they end with the process."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.threads: list[threading.Thread] = []

    def put(self, task: Callable[[], None]) -> None:
        if len(self.threads) < (os.cpu_count() or 1):
            thread = threading.Thread(target=_serve, args=(self.tasks,), name="ptx", daemon=True)
            thread.start()
            self.threads.append(thread)
        self.tasks.put(task)


def _serve(tasks: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        tasks.get()()


def _no_threads() -> None:
    global _pool
    _pool = _Pool()


_pool = _Pool()
os.register_at_fork(after_in_child=_no_threads)  # a child has none of its parent's


def _pthread(name: str, arguments: int) -> Callable[..., int]:
    """A function of the C library, which lets other threads run while it waits."""
    function = ctypes.CDLL(None)[f"pthread_rwlock_{name}"]
    function.argtypes, function.restype = [ctypes.c_void_p] * arguments, ctypes.c_int
    return function


# The gate of a launch: workers are inside until the thread that launches shuts it, once and for all.
_make_gate = _pthread("init", 2)
_enter_gate = _pthread("tryrdlock", 1)
_leave_gate = _pthread("unlock", 1)
_shut_gate = _pthread("wrlock", 1)
