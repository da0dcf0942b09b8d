"""The fuzzers' own mechanism: repeatable, different from case to case, and over when the time is up."""

from __future__ import annotations

from itertools import islice

from tests.fuzz.cases import Cases


def test_a_case_can_be_run_again_alone() -> None:
    fuzzer = Cases("one", seed=3, seconds=60)
    drawn = [rng.random() for rng in islice(fuzzer, 5)]
    assert len(set(drawn)) == 5
    assert fuzzer.again() == "--fuzz-seed 3 --fuzz-case 4"
    assert [rng.random() for rng in Cases("one", seed=3, seconds=0, only=4)] == drawn[4:]


def test_fuzzers_and_seeds_choose_apart() -> None:
    first = [next(iter(Cases(name, seed, seconds=0))).random() for name in ("one", "two") for seed in (3, 4)]
    assert len(set(first)) == 4


def test_one_case_runs_however_short_the_time_and_none_begins_after_it() -> None:
    assert len(list(Cases("one", seed=3, seconds=0))) == 1
    readings = iter(range(100))
    fuzzer = Cases("one", seed=3, seconds=5, clock=lambda: next(readings))
    assert len(list(fuzzer)) == 5
    assert fuzzer.last == 4
    assert next(readings) == 6
