"""What each launch of a step adds to its time, so that the sum is that time although launches run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from executor.launch.graph import Moments


def shares(launches: Sequence[Moments]) -> list[int]:
    """By how many nanoseconds each launch moves the front of what has ended: from the end of the one that ended before it to
    its own, less the time in which no launch ran that had begun. With all such time they add up to the span from the first
    start to the last end. Of launches side by side the one that ends first takes the time until then, and the next one what is
    left; of those that end together the first of the list takes all."""
    order = sorted(range(len(launches)), key=lambda number: launches[number].end)
    still_to_end = [launches[number].began for number in reversed(order)]
    earliest = reversed(list(accumulate(still_to_end, min)))  # of the launches that end with this one or later
    front = min((one.start for one in launches), default=0)
    found = [0] * len(launches)
    for number, began in zip(order, earliest, strict=True):
        end = launches[number].end
        found[number] = end - max(front, began)
        front = end
    return found
