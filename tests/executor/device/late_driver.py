"""A CUDA driver made of host memory whose streams run behind, each on a thread of its own: what needs an order has it only if
the driver was asked for it. No test."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from tests.executor.device.fake_driver import OK, FakeDriver


class LateDriver(FakeDriver):
    """Each piece of work waits up to `late` seconds before it is done."""

    def __init__(self, seed: int, late: float = 0.002) -> None:
        super().__init__()
        self._draw = random.Random(seed)
        self._late = late
        self._queues: dict[int, SimpleQueue[Callable[[], object] | None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._records: dict[Any, threading.Event] = {}

    def _do(self, stream: int, work: Callable[[], object]) -> tuple[Any]:
        delay = self._draw.uniform(0, self._late)

        def later() -> None:
            time.sleep(delay)
            work()

        self._queues[stream].put(later)
        return (OK,)

    def cuStreamCreate(self, flags: int) -> tuple[Any, Any]:
        super().cuStreamCreate(flags)
        stream = len(self._queues) + 1
        queue = self._queues[stream] = SimpleQueue()

        def run() -> None:
            while (work := queue.get()) is not None:
                work()

        self._threads[stream] = threading.Thread(target=run, daemon=True)
        self._threads[stream].start()
        return OK, stream

    def cuStreamDestroy(self, stream: int) -> tuple[Any]:
        self._queues[stream].put(None)
        self._threads[stream].join()
        return super().cuStreamDestroy(stream)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any]:
        done = threading.Event()
        self._queues[stream].put(done.set)
        done.wait()
        return (OK,)

    def cuEventCreate(self, flags: int) -> tuple[Any, Any]:
        super().cuEventCreate(flags)
        return OK, object()

    def cuEventRecord(self, event: Any, stream: int) -> tuple[Any]:
        reached = self._records[event] = threading.Event()
        return self._do(stream, reached.set)

    def cuStreamWaitEvent(self, stream: int, event: Any, flags: int) -> tuple[Any]:
        return self._do(stream, self._records[event].wait)

    def cuEventSynchronize(self, event: Any) -> tuple[Any]:
        self._records[event].wait()
        return (OK,)

    def cuMemcpyHtoDAsync(self, destination: int, source: int, nbytes: int, stream: int) -> tuple[Any]:
        content = ctypes.string_at(source, nbytes)  # pageable memory is read at once
        return self._do(stream, lambda: ctypes.memmove(destination, content, nbytes))

    def cuMemcpyDtoHAsync(self, destination: int, source: int, nbytes: int, stream: int) -> tuple[Any]:
        return self._do(stream, lambda: ctypes.memmove(destination, source, nbytes))

    def cuMemcpyDtoDAsync(self, destination: int, source: int, nbytes: int, stream: int) -> tuple[Any]:
        return self._do(stream, lambda: ctypes.memmove(destination, source, nbytes))

    def cuMemsetD8Async(self, pointer: int, byte: int, nbytes: int, stream: int) -> tuple[Any]:
        return self._do(stream, lambda: ctypes.memset(pointer, byte, nbytes))
