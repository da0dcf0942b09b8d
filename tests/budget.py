"""Run a command and fail if it took longer than the essential tests may: `python -m tests.budget COMMAND`.

The budget is for two processors half as fast as those that YARDSTICK was measured on. Where a loop that is timed before and
after the command says that they are slower still, by themselves or for their neighbours, the budget grows with it: the tests
are what is judged."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import median

from tests.essential import BUDGET

PROCESSORS = 2
SLOWNESS_OF_CI = 2.0
"""How many times slower than the machine for development the one may be that BUDGET is for."""
YARDSTICK = 0.055
"""Seconds of `loop` on both processors of the machine for development at once, with nothing beside it."""
ROUNDS = 31


def allowed(before: float, after: float) -> float:
    """Seconds that the command may take where `slowness` was this before and after it."""
    return BUDGET * max(1.0, before / SLOWNESS_OF_CI, after / SLOWNESS_OF_CI)


def slowness() -> float:
    """How many times longer plain Python takes now on all processors at once than on the machine for development."""
    with ProcessPoolExecutor(PROCESSORS) as pool:
        return max(pool.map(loops, [ROUNDS] * PROCESSORS)) / YARDSTICK


def loops(rounds: int) -> float:
    """Seconds of a loop on the clock of the wall, since waiting for a processor counts for tests, too: the median of some."""
    return median(loop() for _ in range(rounds))


def loop() -> float:
    start = time.perf_counter()
    words = [f"%r{i}" for i in range(60_000)]
    seen = {word: (i, word) for i, word in enumerate(words)}
    assert sum(len(word) + seen[word][0] % 3 for word in words)
    return time.perf_counter() - start


def main(command: str) -> int:
    """Exit code: the command's; 1 if it took too long."""
    before = slowness()
    start = time.monotonic()
    code = subprocess.run(["bash", "-eo", "pipefail", "-c", command], check=False).returncode
    seconds = time.monotonic() - start
    after = slowness()
    most = allowed(before, after)
    print(
        f"{seconds:.0f} s of {most:.0f} s: {BUDGET} s for a machine {SLOWNESS_OF_CI:g} times slower than the one for "
        f"development; this one was {before:.1f} times slower before and {after:.1f} after"
    )
    return code or int(seconds > most)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
