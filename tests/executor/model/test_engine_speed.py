"""What is run when an engine is timed: on a stand-in that records its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from executor.base.errors import ModelError
from executor.measure.speed import SpeedCase, speed_cases
from executor.model.engine_speed import WARM_UPS, EngineSpeed
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER


@dataclass
class Answers:
    tokens: list[int]

    def chosen(self) -> list[int]:
        return self.tokens

    def logits(self, index: int) -> Any:
        raise AssertionError("nobody samples here")

    def draw(self, draws: object, allowed: object) -> Any:
        raise AssertionError("nobody samples here")


@dataclass
class Recorder:
    """An engine that answers each token t with t + 1, and NaN where it is told to."""

    slots: int = 4
    rows: int = 8
    vocab: int = 1000
    context: int = 64
    page_len: int = 4
    pages: int = 64
    model: object = None
    nan: bool = False
    ahead: bool = True
    window: int | None = None
    window_pages: int = 0
    pays: int = 8
    steps: list[list[Row]] = field(default_factory=list)
    tables: dict[int, list[int]] = field(default_factory=dict)

    def paying_rows(self, waiting: int) -> int:
        return min(waiting, self.pays)

    def set_table(self, slot: int, pages: Sequence[int], window: Sequence[int | None] | None = None) -> None:
        self.tables[slot] = list(pages)

    def prepare(self, progress: object = None) -> None:
        raise AssertionError("nobody waits here")

    def step(self, rows: Sequence[Row]) -> Answers:
        assert 1 <= len(rows) <= self.rows
        for row in rows:
            assert row.position < len(self.tables[row.slot]) * self.page_len
        self.steps.append(list(rows))
        return Answers([NOT_A_NUMBER if self.nan else (row.token + 1) % self.vocab for row in rows if row.scored])

    def step_ahead(self) -> Answers | None:
        if not self.ahead:
            return None
        return self.step([Row(row.slot, (row.token + 1) % self.vocab, row.position + 1, True) for row in self.steps[-1]])


def timed(engine: Recorder, case: SpeedCase, *others: SpeedCase) -> list[list[Row]]:
    """The steps of a case."""
    speed = EngineSpeed(engine, (case, *others))
    engine.steps.clear()
    assert speed.tokens_per_second(case) > 0
    return engine.steps


def test_a_prompt_goes_in_as_large_steps_and_its_last_row_is_scored() -> None:
    steps = timed(Recorder(rows=8), SpeedCase("prompt", 19))
    assert [len(step) for step in steps] == [8, 8, 3]
    rows = [row for step in steps for row in step]
    assert [row.position for row in rows] == list(range(19))
    assert [row.scored for row in rows] == [False] * 18 + [True]


@pytest.mark.parametrize("ahead", [True, False])
def test_every_token_that_is_decoded_is_the_answer_to_the_one_before(ahead: bool) -> None:
    steps = timed(Recorder(ahead=ahead), SpeedCase("depth", 5, depth=7))
    assert [row.position for (row,) in steps] == [7, 8, 9, 10, 11]
    first = steps[0][0].token
    assert [row.token for (row,) in steps] == [first + number for number in range(5)]


def test_a_batch_is_a_row_of_each_sequence_in_pages_of_its_own() -> None:
    engine = Recorder()
    steps = timed(engine, SpeedCase("batch", 3, depth=6, sequences=3), SpeedCase("depth", 2, depth=30))
    assert [[(row.slot, row.position) for row in step] for step in steps] == [
        [(slot, position) for slot in range(3)] for position in (6, 7, 8)
    ]
    assert {slot: len(pages) for slot, pages in engine.tables.items()} == {0: 8, 1: 3, 2: 3}
    assert len({page for pages in engine.tables.values() for page in pages}) == 14


def test_a_batch_takes_turns_where_fewer_rows_pay() -> None:
    steps = timed(Recorder(pays=2), SpeedCase("batch", 3, depth=6, sequences=3))
    assert [[(row.slot, row.position) for row in step] for step in steps] == [
        *([(0, position), (1, position)] for position in (6, 7, 8)), *([(2, position)] for position in (6, 7, 8))
    ]  # fmt: skip


def test_before_the_timing_caches_are_filled_and_each_case_has_run() -> None:
    engine = Recorder(rows=16)
    cases = speed_cases([5], tokens=4, depths=[0, 11], batches=[1, 3], batch_depth=5)
    reports: list[tuple[int, int]] = []
    EngineSpeed(engine, cases).prepare(lambda done, total: reports.append((done, total)))
    filled = [(step[0].slot, len(step)) for step in engine.steps[:3]]
    assert filled == [(0, 11), (1, 5), (2, 5)]
    after = [len(step) for step in engine.steps[3:]]
    assert after == [5, *[1] * WARM_UPS, *[1] * WARM_UPS, *[1] * WARM_UPS, *[3] * WARM_UPS]
    assert reports[-1] == (21 + len(cases), 21 + len(cases))


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (Recorder(slots=2), "these cases need 3 slots; the engine has 2"),
        (Recorder(context=8), "these cases need 9 positions a sequence; the engine has 8"),
        (Recorder(pages=8), "these cases need 9 pages; the engine has 8"),
    ],
)
def test_an_engine_that_is_too_small_is_refused(engine: Recorder, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        EngineSpeed(engine, [SpeedCase("batch", 3, depth=6, sequences=3)])


def test_logits_that_are_no_numbers_end_the_benchmark() -> None:
    speed = EngineSpeed(Recorder(nan=True), [SpeedCase("depth", 3)])
    with pytest.raises(ModelError, match="the logits hold NaN"):
        speed.prepare()
