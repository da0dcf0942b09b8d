"""What one request, and all of them together, may take: bytes, time, places in the queue."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from executor.serve.errors import ApiError

LONGEST_WAIT: Final = 60
"""The longest Retry-After, in seconds; OpenAI's client ignores longer ones."""
REMEMBERED: Final = 64
"""Answers whose time says how soon a place may become free."""


@dataclass(frozen=True)
class ServerLimits:
    """running: answers that are made at a time; queue: more that may wait; body_bytes: of a request; read_seconds: until its
    head has been read, and its body; request_seconds: until it has been answered; drain_seconds: until the server ends after it
    was told to; step_seconds: until a step of the device that has not ended counts as one that will not."""

    running: int
    queue: int
    body_bytes: int = 8 << 20
    read_seconds: float = 30.0
    request_seconds: float = 600.0
    drain_seconds: float = 30.0
    step_seconds: float = 60.0

    @property
    def places(self) -> int:
        """Answers that run or wait."""
        return self.running + self.queue


class RequestPlaces:
    """Who may run or wait: each answer takes a place. For the event loop alone."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.taken = 0
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)

    @contextmanager
    def taking(self, count: int) -> Iterator[None]:
        """Places for the answers of one request, in the block. ApiError 429 with Retry-After if there are not so many now, 400
        if there never are."""
        most = self.limits.places
        if count > most:
            raise ApiError(
                f"the request asks for {count} answers at once; allowed: up to {most}", param="n", code="too_many_answers"
            )
        if self.taken + count > most:
            wait = self.wait()
            raise ApiError(
                f"all {self.limits.running} places are taken and {self.limits.queue} requests wait; try again in {wait} s",
                status=429,
                code="queue_full",
                headers={"Retry-After": str(wait)},
            )
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count

    def answered(self, seconds: float) -> None:
        """An answer took so long, its time in the queue included."""
        self._seconds.append(seconds)

    def wait(self) -> int:
        """Seconds after which half of those who wait now are likely to have been answered, at least 1."""
        mean = sum(self._seconds) / len(self._seconds) if self._seconds else 1.0
        return min(LONGEST_WAIT, max(1, math.ceil(mean / 2)))
