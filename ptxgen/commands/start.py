"""Where the processes of `ptxgen` and `ptxrun` begin and end: Ctrl-C while modules are imported, streams that are closed.
Imports nothing that takes time; what the commands do is ptxgen/commands/cli.py's and executor/commands/cli.py's business,
found by name."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

from ptxgen.neighbour import why_not

# Exit codes.
FAILED = 1
"""The command ran, and what it looked at is wrong: a check that failed, a sanitiser's finding."""
BAD_INPUT = 2
"""What the user gave cannot be used: options, files, devices. click's usage errors have it too."""
INTERRUPTED = 130
CLOSED_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended; Python ignores that signal."""

GRACE = 1.0
"""Seconds that a command has to end by itself after Ctrl-C. Python handles a signal between two of its own instructions, and an
assembler's call, or a thread that is joined, may take many seconds on a busy machine."""


def ptxgen() -> None:
    """The entry point `ptxgen`."""
    _start("ptxgen.commands.cli")


def ptxrun() -> None:
    """The entry point `ptxrun`. It stands here, and finds executor by its name alone, because another project's executor may be
    in the place of ours: that is said in one sentence instead of what its modules raise."""
    open_streams()
    if fault := why_not("executor"):
        with suppress(OSError):
            print(f"ptxrun: {fault}", file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT)
    _start("executor.commands.cli")


def _start(module: str) -> None:
    """Import the command `main` of a module and run it. Before and after it, Ctrl-C ends the process at once and silently:
    there is nothing to undo then, and what is interrupted in the middle of an import might say anything. While it runs, the
    first Ctrl-C is a KeyboardInterrupt, and one more, while that is taken care of, ends the process at once, too; so does the
    end of GRACE, whatever it does then. Where the process was started with SIGINT ignored, it stays so."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    try:
        open_streams()
        if heeded:
            _watch()
        main = import_module(module).main
        if heeded:
            signal.signal(signal.SIGINT, _interrupt)
        main()
    finally:
        if heeded:
            signal.signal(signal.SIGINT, _leave)


def open_streams() -> None:
    """Give each standard stream that is closed a place that nothing can be read from or written to: else the next file that is
    opened would be stdout, and what is said would be written into it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            unusable = os.open(os.devnull, os.O_WRONLY if mode == "r" else os.O_RDONLY)
            if unusable != number:  # a lower one is open, so the system gave another
                os.dup2(unusable, number)
                os.close(unusable)
            stream = open(number, mode, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGINT, _leave)
    raise KeyboardInterrupt


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


def _watch() -> None:
    """Have a thread see each signal when it comes, and end the process some time after a Ctrl-C that is to end it: what the
    main thread cannot do while it is in a call that takes long."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(heard,), name="ctrl-c", daemon=True).start()


def _end_in_time(heard: int) -> None:
    while number := os.read(heard, 1):
        if number[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) in (_interrupt, _leave):
            time.sleep(GRACE)
            _leave()
