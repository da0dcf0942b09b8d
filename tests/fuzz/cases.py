"""The cases of one fuzzer: seeded generators until its time is up, and which of them was the last."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Cases:
    """Iterate to get a `random.Random` a case. A case depends on `seed`, `name` and its number alone, so any can be run again.

    name: of the fuzzer, so that two fuzzers do not choose alike; seconds: how long cases are begun (one is, always);
    only: the number of the one case to run; clock: what time is read from, in seconds.
    """

    name: str
    seed: int
    seconds: float
    only: int | None = None
    clock: Callable[[], float] = time.monotonic
    last: int | None = field(default=None, init=False)
    """Number of the case that was begun last."""

    def __iter__(self) -> Iterator[random.Random]:
        if self.only is not None:
            yield self._begin(self.only)
            return
        end = self.clock() + self.seconds
        number = 0
        yield self._begin(number)
        while self.clock() < end:
            number += 1
            yield self._begin(number)

    def again(self) -> str:
        """The options that run the last case alone."""
        return f"--fuzz-seed {self.seed} --fuzz-case {self.last}"

    def _begin(self, number: int) -> random.Random:
        self.last = number
        return random.Random(f"{self.name} {self.seed} {number}")
