"""Which of the kernels that are fastest alone a table gets: those with which whole steps of the model are faster. Times nothing
itself: a test of steps is given what does."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from executor.choice.choice import GpuProfile
from executor.choice.table import TuningEntry, TuningTable
from executor.tune.tune import Progress, Shape, winners

LEAST_ROUNDS: Final = 5
"""That tell a gain from noise."""


@dataclass(frozen=True)
class Proposal:
    """For a shape and so many rows of activations, `entry` instead of what a table has for both; None: nothing, so that what is
    shipped or derived counts."""

    precision: str
    shape: Shape
    rows: int
    entry: TuningEntry | None

    @property
    def place(self) -> tuple[object, ...]:
        """Equal for two of which a table can have one."""
        format, k, n = self.shape
        precision, rows = (self.precision, self.rows) if self.entry is None else (self.entry.precision, self.entry.rows)
        return precision, format.id, k, n, rows

    def put(self, table: TuningTable) -> TuningTable:
        """The table with it."""
        place = self.place
        others = tuple(one for one in table.entries if (one.precision, one.format, one.k, one.n, one.rows) != place)
        return replace(table, entries=others if self.entry is None else (*others, self.entry))


@dataclass(frozen=True)
class Gain:
    """What another table does to a step of so many rows. before, after: seconds, medians of the rounds; saved: the median of
    what a round's two times differ by; noise: twice the median absolute deviation of that."""

    rows: int
    before: float
    after: float
    saved: float
    noise: float

    @classmethod
    def of(cls, rows: int, before: Sequence[float], after: Sequence[float]) -> Gain:
        """From the times of each round."""
        differences = [one - other for one, other in zip(before, after, strict=True)]
        saved = statistics.median(differences)
        noise = 2 * statistics.median(abs(difference - saved) for difference in differences)
        return cls(rows, statistics.median(before), statistics.median(after), saved, noise)

    @property
    def faster(self) -> bool:
        """By more than the noise."""
        return self.saved > self.noise

    @property
    def reversed(self) -> Gain:
        """What the table of before does, in the place of the other."""
        return Gain(self.rows, self.after, self.before, -self.saved, self.noise)

    @property
    def slower(self) -> bool:
        """By more than the noise."""
        return -self.saved > self.noise

    def __str__(self) -> str:
        step = "a step" if self.rows == 1 else f"a step of {self.rows} rows"
        return (
            f"{step} takes {self.after * 1e6:.2f} us with it and {self.before * 1e6:.2f} without, noise {self.noise * 1e6:.2f}"
        )


@dataclass(frozen=True)
class Dropped:
    """A proposal that was not taken. gains: of the steps that it changes; together: they are of all that had been taken."""

    proposal: Proposal
    gains: tuple[Gain, ...]
    together: bool = False

    @property
    def reason(self) -> str:
        """Why, in words."""
        if not self.gains:
            return "no step that was timed uses it any more"
        gain = next((gain for gain in self.gains if gain.slower), self.gains[0])
        what = "slower" if gain.slower else "no faster beyond the noise"
        return f"{what}{' with all that had been taken' if self.together else ''}: {gain}"


@dataclass(frozen=True)
class StepFigures:
    """Seconds of a step of so many rows: with the table as it was, with all proposals, and with what is kept; medians of the
    same rounds. noise: of `before` against `kept`, or against `everything` where nothing is kept; see Gain."""

    rows: int
    before: float
    everything: float
    kept: float
    noise: float


@dataclass(frozen=True)
class Kept:
    """table: what is worth having, the old one where nothing else is. tried: how many kernels were tried in steps that were not
    the fastest alone."""

    table: TuningTable
    taken: tuple[Proposal, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    tried: int = 0
    steps: tuple[StepFigures, ...] = ()


@dataclass(frozen=True)
class StepTest:
    """Steps of a model whose matrices have these shapes, of these numbers of rows. profile: what a run uses whose own table is
    this one; times: by profile, seconds of a step of so many rows in each round."""

    shapes: Sequence[Shape]
    rows: Sequence[int]
    profile: Callable[[TuningTable], GpuProfile]
    times: Callable[[int, Sequence[GpuProfile]], Sequence[Sequence[float]]]

    def changed(self, one: TuningTable, other: TuningTable, shapes: Sequence[Shape] | None = None) -> list[int]:
        """The numbers of rows for which the tables choose other kernels. shapes: of which; all unless told otherwise."""
        profiles = self.profile(one), self.profile(other)

        def differ(rows: int, shape: Shape) -> bool:
            mine, others = (profile.choose(*shape, rows=rows).kernel for profile in profiles)
            return mine != others

        return [rows for rows in self.rows if any(differ(rows, shape) for shape in shapes or self.shapes)]

    def gains(self, before: TuningTable, after: TuningTable) -> tuple[Gain, ...]:
        """Of the steps that change."""
        profiles = self.profile(before), self.profile(after)
        return tuple(Gain.of(rows, *self.times(rows, profiles)) for rows in self.changed(before, after))


def proposals(table: TuningTable, measured: TuningTable, precision: str, test: StepTest) -> list[Proposal]:
    """What the kernels that were measured to be fastest alone would change of the table: they in the place of its entries.
    Where its own entry is the fastest already, nothing in its place: it may never have been in a step that was timed."""
    made = []
    for rows in test.rows:
        for shape, entry in winners(measured, test.shapes, precision, (rows,)):
            options = (Proposal(precision, shape, rows, one) for one in (entry, None))
            made += [option for option in options if rows in test.changed(table, option.put(table), [shape])][:1]
    return made


def others(
    table: TuningTable, proposed: Sequence[Proposal], measured: TuningTable, precision: str, test: StepTest, tries: int
) -> list[Proposal]:
    """What else `keep` may try in steps, so that with what is proposed there are up to `tries` for each shape and number of
    rows: of the kernels that were measured, the fastest alone that are another choice than the table's."""
    asked = {one.entry for one in proposed}
    made = []
    for rows in test.rows:
        for shape in test.shapes:
            left = measured
            for _ in range(tries):
                entry = left.fastest(precision, *shape, rows)
                if entry is None:
                    break
                left = replace(left, entries=tuple(other for other in left.entries if other != entry))
                one = Proposal(precision, shape, rows, entry)
                if entry not in asked and rows in test.changed(table, one.put(table), [shape]):
                    made.append(one)
    return made


def keep(
    table: TuningTable,
    proposed: Sequence[Proposal],
    test: StepTest,
    progress: Progress | None = None,
    *,
    others: Sequence[Proposal] = (),
) -> Kept:
    """Take what makes steps faster by more than the noise, and none of those that it changes slower: for each number of rows
    all proposals at once, else, one after another, those that do; then one after another the `others`, each against what is
    taken by then. At the end steps with all that was taken are timed against those with the old table; unless they are faster,
    nothing is taken."""
    report = progress or (lambda done, total: None)
    waiting = [[one for one in proposed if one.rows == rows] for rows in sorted({one.rows for one in proposed})]
    kept, taken, dropped, done = table, list[Proposal](), list[Dropped](), 0
    while waiting:
        report(done, done + len(waiting) + len(others) + 1)
        part = waiting.pop(0)
        trial = _with(kept, part)
        gains = test.gains(kept, trial)
        done += 1
        if _accepted(gains):
            kept, taken = trial, [*taken, *part]
        elif len(part) > 1:
            waiting = [[one] for one in part] + waiting
        else:
            dropped.append(Dropped(part[0], gains))
    for number, one in enumerate(others):
        report(done + number, done + len(others) + 1)
        trial = one.put(kept)
        gains = test.gains(kept, trial)
        if _accepted(gains):
            lost = tuple(gain.reversed for gain in gains)
            dropped += [Dropped(other, lost) for other in taken if other.place == one.place]
            kept, taken = trial, [*(other for other in taken if other.place != one.place), one]
    everything = _with(table, proposed)
    changed = test.changed(table, kept)
    figured = sorted({*changed, *test.changed(table, everything)})
    rounds = {rows: test.times(rows, [test.profile(one) for one in (table, everything, kept)]) for rows in figured}
    report(1, 1)
    gains = tuple(Gain.of(rows, rounds[rows][0], rounds[rows][2]) for rows in changed)
    if taken and not _accepted(gains):
        dropped += [Dropped(one, gains, together=True) for one in taken]
        kept, taken = table, []
    steps = tuple(_figures(rows, *times, as_it_was=not taken) for rows, times in rounds.items())
    return Kept(kept, tuple(taken), tuple(dropped), len(others), steps)


def _with(table: TuningTable, proposed: Iterable[Proposal]) -> TuningTable:
    for one in proposed:
        table = one.put(table)
    return table


def _accepted(gains: Sequence[Gain]) -> bool:
    return any(gain.faster for gain in gains) and not any(gain.slower for gain in gains)


def _figures(
    rows: int, before: Sequence[float], everything: Sequence[float], kept: Sequence[float], *, as_it_was: bool
) -> StepFigures:
    gain, all_gain = Gain.of(rows, before, kept), Gain.of(rows, before, everything)
    if as_it_was:
        return StepFigures(rows, gain.before, all_gain.after, gain.before, all_gain.noise)
    return StepFigures(rows, gain.before, all_gain.after, gain.after, gain.noise)
