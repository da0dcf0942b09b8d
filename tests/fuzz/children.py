"""A case in a process of its own, which it may break. No test."""

from __future__ import annotations

import os
import resource
import signal
import traceback
from collections.abc import Callable


def survives(case: Callable[[], None], seconds: int, nbytes: int) -> str:
    """What is wrong with a case, run in a fork with so much time of a CPU and so much memory more than this process has: its
    traceback, or the signal that ended it; nothing if it returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            with open("/proc/self/statm", encoding="ascii") as stream:
                now = int(stream.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, now + nbytes))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            case()
            code = 0
        except BaseException:
            os.write(write, traceback.format_exc()[-60_000:].encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        return f"{said}ended by {signal.Signals(-code).name}"
    return said or (f"ended with {code}" if code else "")
