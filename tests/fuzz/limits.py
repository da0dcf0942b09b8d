"""What a case may cost. No test."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded(seconds: float, nbytes: int) -> Iterator[None]:
    """The block may take so much time of the process on its CPUs (waiting is what the test's own limit is for), and so much
    memory beyond what the process has: more is a MemoryError."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        now = int(stream.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, before[1]))
    began = time.process_time()
    try:
        yield
    finally:
        taken = time.process_time() - began
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert taken < seconds, f"took {taken:.1f} s"
