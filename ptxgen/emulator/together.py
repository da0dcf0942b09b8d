"""Runs blocks in turns on one thread: all are there at once, and may wait for each other. They are those of a cooperative
launch, or of several launches, each on a device of its own. Blocks that have nothing to do with each other are workers.py's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from ptxgen.emulator.layout import FINISHED, PAUSED, STUCK, TIMED_OUT, ContextWord
from ptxgen.emulator.runtime.schedule import SLEEP_COST
from ptxgen.emulator.scratch import Scratch
from ptxgen.emulator.watch import Run, TimeLimit, call

MOST_BLOCKS = 1024
"""Each has its own shared memory and registers here."""
_IDLE_ROUNDS = 1 << 12
"""Rounds in which every block only slept, after which none is taken to wait for anything that is still to come."""


class BlockTurn(NamedTuple):
    """A block that takes turns: its launch's code, its scratch, its number in its launch."""

    run: Run
    scratch: Scratch
    block: int


def run_together(turns: Sequence[BlockTurn], seed: int | None, limit: TimeLimit) -> tuple[int, int]:
    """Run blocks to their end. In a round each has a turn, in an order that the seed shuffles anew; a turn lasts until the
    block sleeps or has used its share up. Waiting takes nothing from its budget.

    The counts of what was checked are those of all, so each block goes on with those of the one before it.

    Returns what stopped them and the number of the one that did: FINISHED, a fault, STUCK where all that are left wait for each
    other, or TIMED_OUT by the limit.
    """
    shuffler = random.Random(seed)
    left = list(range(len(turns)))
    idle = 0
    last = turns[0].scratch.context
    while left:
        order, left, idle = left, [], idle + 1
        if seed is not None:
            shuffler.shuffle(order)
        for number in order:
            run, scratch, block = turns[number]
            c = scratch.context
            c[ContextWord.SERIAL], c[ContextWord.LAST_EVENT], last = last[ContextWord.SERIAL], last[ContextWord.LAST_EVENT], c
            before = c[ContextWord.TURNS]
            while True:
                if limit.is_over:
                    return TIMED_OUT, number
                status = call(run, scratch, block, block + 1)
                if not (status == PAUSED and c[ContextWord.WARP_AT]):  # within its turn, which goes on
                    break
            if status == PAUSED:
                left.append(number)
                if c[ContextWord.TURNS] == before + SLEEP_COST:
                    c[ContextWord.TURNS] = max(before, 1)  # 0 would be a block that has not begun
                    continue
            elif status != FINISHED:
                return status, number
            idle = 0
        if idle == _IDLE_ROUNDS:
            return STUCK, min(left)
    return FINISHED, 0
