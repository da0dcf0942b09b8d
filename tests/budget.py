"""Run a command and fail if it took longer than the essential tests may: `python -m tests.budget COMMAND`. Or say whether all
of .ci/run took longer than it may: `python -m tests.budget --all SECONDS`.

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

ALL = 25 * 60
"""Seconds that all of .ci/run may take on the machine that BUDGET is for."""
PROCESSORS = 2
SLOWNESS_OF_CI = 2.0
"""How many times slower than the machine for development the one may be that BUDGET is for."""
YARDSTICK = 0.055
"""Seconds of `loop` on both processors of the machine for development at once, with nothing beside it."""
ROUNDS = 31


def allowed(before: float, after: float, budget: float) -> float:
    """Seconds that may be taken of a budget where `slowness` was this before and after."""
    return budget * max(1.0, before / SLOWNESS_OF_CI, after / SLOWNESS_OF_CI)


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
    late = judged(seconds, before, slowness(), BUDGET)
    return code or late


def judged(seconds: float, before: float, after: float, budget: float) -> int:
    """Exit code, after a line that says why: 1 if so many seconds are too many."""
    most = allowed(before, after, budget)
    print(
        f"{seconds:.0f} s of {most:.0f} s: {budget} s for a machine {SLOWNESS_OF_CI:g} times slower than the one for "
        f"development; this one was {before:.1f} times slower before and {after:.1f} after"
    )
    return int(seconds > most)


def main_of_all(seconds: float) -> int:
    """Exit code: 1 if all of .ci/run took too long."""
    now = slowness()
    return judged(seconds, now, now, ALL)


if __name__ == "__main__":
    sys.exit(main_of_all(float(sys.argv[2])) if sys.argv[1] == "--all" else main(sys.argv[1]))
