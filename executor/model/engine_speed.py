"""Times an engine: prompts, sequences that decode, many of them. Each case is one call; how often and in which order is up to
the caller. What the cases are stands in executor/measure/speed.py."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from executor.base.errors import ModelError
from executor.choice.thresholds import TURN
from executor.measure.speed import SpeedCase, room_for
from executor.model.step import Row, Scores, StepEngine
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER

WARM_UPS = 2
"""Decode steps of each case that nobody times: the first captures its graph."""


class EngineSpeed:
    """An engine with sequences that are as long as the cases need. Each slot has pages of its own: nothing is shared.

    The tokens are random; those of a prompt are the same each time, decoded ones are the engine's own, and the step of a token
    is started before that was read, if the engine does that. Sequences take turns as those of a scheduler do
    (StepEngine.paying_rows). Positions are computed anew as often as they are timed, so a cache holds what a run up to there
    would have left in it."""

    def __init__(self, engine: StepEngine, cases: Sequence[SpeedCase], seed: int = 0) -> None:
        """Gives pages to slots. ArgumentError if the engine has too few slots or pages, or too short a context."""
        self.engine = engine
        self.cases = tuple(cases)
        room = room_for(cases)
        pages = [-(-positions // engine.page_len) for positions in room]
        for thing, needed, there in (
            ("slots", len(room), engine.slots),
            ("positions a sequence", max(room), engine.context),
            ("pages", sum(pages), engine.pages),
        ):
            if needed > there:
                raise ArgumentError(f"these cases need {needed} {thing}; the engine has {there}")
        ends = np.cumsum(pages)
        for slot, (count, end) in enumerate(zip(pages, ends, strict=True)):
            engine.set_table(slot, range(int(end) - count, int(end)))
        rng = np.random.default_rng(seed)
        self._texts = [rng.integers(engine.vocab, size=positions).tolist() for positions in room]

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Fill the caches to the depths of the cases, and run everything that is timed once, so that it is captured."""
        depths = [
            max((case.depth for case in self.cases if case.sequences > slot), default=0) for slot in range(len(self._texts))
        ]
        total = sum(depths) + len(self.cases)
        done = 0
        for slot, depth in enumerate(depths):
            self._prompt(slot, depth)
            done += depth
            if progress is not None:
                progress(done, total)
        for number, case in enumerate(self.cases, 1):
            self._run(case, case.tokens if case.kind == "prompt" else min(WARM_UPS, case.tokens))
            if progress is not None:
                progress(done + number, total)

    def tokens_per_second(self, case: SpeedCase) -> float:
        """Run a case once: tokens of all sequences by the host's clock, from the first row given to the last token read.
        ModelError if the logits hold NaN."""
        start = time.perf_counter()
        self._run(case, case.tokens)
        return case.tokens * case.sequences / (time.perf_counter() - start)

    def _run(self, case: SpeedCase, tokens: int) -> None:
        if case.kind == "prompt":
            self._prompt(0, tokens)
        else:
            self._decode(case, tokens)

    def _prompt(self, slot: int, length: int) -> None:
        """The first tokens of a slot's text, in steps as large as they can be; waits for the last one's answer."""
        text, most = self._texts[slot], self.engine.rows
        for start in range(0, length, most):
            places = range(start, min(start + most, length))
            scores = self.engine.step([Row(slot, text[at], at, at == length - 1) for at in places])
            if places.stop == length:
                _checked(scores.chosen())

    def _decode(self, case: SpeedCase, tokens: int) -> None:
        texts = enumerate(self._texts[: case.sequences])
        waiting = deque(Row(slot, text[case.depth], case.depth, True) for slot, text in texts)
        end = case.depth + tokens
        while waiting:
            rows = [waiting.popleft() for _ in range(self.engine.paying_rows(len(waiting)))]
            left = end - max(row.position for row in rows)
            rows = self._turn(rows, min(TURN, left) if waiting else left)
            waiting.extend(row for row in rows if row.position < end)

    def _turn(self, rows: list[Row], steps: int) -> list[Row]:
        """Decode so many tokens of the sequences of these rows; the rows that come next."""
        ahead: Scores | None = None
        for step in range(steps):
            scores = self.engine.step(rows) if ahead is None else ahead
            ahead = self.engine.step_ahead() if step + 1 < steps else None
            answers = _checked(scores.chosen())
            rows = [Row(row.slot, answer, row.position + 1, True) for row, answer in zip(rows, answers, strict=True)]
        return rows


def _checked(answers: list[int]) -> list[int]:
    if NOT_A_NUMBER in answers:
        raise ModelError("the logits hold NaN, so no token is the likeliest; the weights are damaged or overflow f32")
    return answers
