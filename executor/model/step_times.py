"""Times whole steps of a model that is loaded, with the kernels of one profile and of others, in turns. Which profile is worth
having is up to the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from executor.choice.choice import GpuProfile
from executor.model.context import ContextLimit
from executor.model.decode_profile import WARM_UP, require_unwatched
from executor.model.decoder import Decoder
from executor.model.engine import PAGE_LEN, Engine
from executor.model.spec import ModelSpec
from executor.model.step import Row

STEPS: Final = {"cuda": 16, "emulator": 1}
"""Steps of a turn, one after another, whose mean is its time."""
MOST_SEQUENCES: Final = 64
"""Rows of the largest step that is timed as so many sequences, a token each; more are a part of one prompt."""
LEAST_CONTEXT: Final = 64
TOKEN: Final = 1
"""What is run: a step takes as long for any token."""

Turn = Callable[[], float]
"""Runs some steps, and returns seconds of one by the clock of the device."""


def context_for(spec: ModelSpec, rows: Sequence[int]) -> int:
    """Room, in positions, that a model needs for steps of these numbers of rows, as far as it has any."""
    prompts = (-(-number // PAGE_LEN) * PAGE_LEN for number in rows if number > MOST_SEQUENCES)
    return min(max(LEAST_CONTEXT, *prompts, 0), ContextLimit.of(spec).tokens)


def step_times(decoder: Decoder, rows: int, profiles: Sequence[GpuProfile], rounds: int) -> list[tuple[float, ...]]:
    """By profile, the device's seconds of a step of so many rows in each round; an odd number of rounds gets one more. In a
    round each profile has its turn, in one order and in the next round in the other, so that a GPU that becomes warm favours
    none. In the second half of the rounds all is laid out anew, the last profile first: what comes first in memory may be
    faster.

    One row is a step of a sequence by the graphs of `generate`; up to MOST_SEQUENCES are a step of an engine over so many
    sequences, more are a part of a prompt, or sequences again where the context has no room for it. The decoder's sequence
    stays. ArgumentError if something watches every launch (the debug mode)."""
    require_unwatched(decoder.launcher)
    times: list[list[float]] = [[] for _ in profiles]
    order = list(range(len(profiles)))
    with decoder.cache.set_aside(decoder.context):
        for laid_out in (order, order[::-1]):
            with ExitStack() as stack:
                turns = {}
                for at in laid_out:
                    steps = _one_row(decoder, profiles[at]) if rows == 1 else _several(decoder, profiles[at], rows)
                    turns[at] = stack.enter_context(steps)
                for number in range(-(-rounds // 2)):
                    for at in order if number % 2 == 0 else reversed(order):
                        times[at].append(turns[at]())
    return [tuple(one) for one in times]


@contextmanager
def _one_row(decoder: Decoder, profile: GpuProfile) -> Iterator[Turn]:
    """Steps of one sequence from its second token on, each by the token that the one before found."""
    device = decoder.device
    steps = STEPS[device.kind]
    with decoder.beside(profile) as own:

        def turn() -> float:
            own.reset()
            own.step(TOKEN)
            for _ in range(WARM_UP - 1):
                own.step()
            start = device.record()
            for _ in range(steps):
                own.step()
            seconds = device.elapsed(start, device.record()) / steps
            own.reset()
            return seconds

        own.prepare()
        yield turn


@contextmanager
def _several(decoder: Decoder, profile: GpuProfile, rows: int) -> Iterator[Turn]:
    """One step of an engine, again and again."""
    device = decoder.device
    steps = STEPS[device.kind]
    of_prompt = rows > MOST_SEQUENCES and decoder.context // PAGE_LEN * PAGE_LEN >= rows
    slots, pages = (1, -(-rows // PAGE_LEN)) if of_prompt else (rows, 1)
    with decoder.beside(profile) as own, _engine(own, slots, pages, rows) as engine:
        if of_prompt:
            engine.step([Row(0, TOKEN, position, position == rows - 1) for position in range(rows)])
        else:
            engine.step([Row(slot, TOKEN, 0, True) for slot in range(rows)])
        graph = engine.steps.replayed
        assert graph is not None

        def turn() -> float:
            for _ in range(WARM_UP):
                graph.replay()
            start = device.record()
            for _ in range(steps):
                graph.replay()
            return device.elapsed(start, device.record()) / steps

        yield turn


@contextmanager
def _engine(decoder: Decoder, slots: int, pages: int, rows: int) -> Iterator[Engine]:
    """An engine whose slots have so many pages each, given back when the block ends."""
    engine = Engine(decoder, slots=slots, pages=slots * pages, context=pages * PAGE_LEN, rows=rows)
    try:
        for slot in range(slots):
            engine.set_table(slot, range(slot * pages, (slot + 1) * pages))
        yield engine
    finally:
        if not engine.device.closed:
            engine.free()
