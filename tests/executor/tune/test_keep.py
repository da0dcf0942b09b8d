"""What of the fastest kernels a table gets. The times of steps are made up: the sum of what the chosen kernels take in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.choice.table import TuningEntry, TuningTable
from executor.tune.keep import Kept, StepTest, keep, others, proposals
from executor.tune.tune import Shape
from tests.executor.tune.measured import H200, HW, MWV, Q4_K, entry

SHAPES: list[Shape] = [(Q4_K, 4096, 64), (Q4_K, 4096, 1024)]
SMALL, LARGE = entry(4096, 64, MWV, parameters={}), entry(4096, 1024, MWV, parameters={})
EMPTY = TuningTable("own.json", H200)
SHIPPED = TuningTable("shipped", H200, (entry(4096, 64, seconds=2e-6, rows=4), entry(4096, 64, seconds=3e-6, rows=8)), True)


def tuned(
    costs: Mapping[tuple[str, int], float],
    *measured: TuningEntry,
    before: TuningTable = EMPTY,
    rows: Sequence[int] = (1,),
    shipped: TuningTable | None = None,
    noise: float = 0.0,
    tries: int = 1,
) -> Kept:
    """costs: microseconds of a kernel, by name and n, in a step of one row; those that are not named take 10. tries: kernels of
    a shape that are tried in steps."""
    rng = np.random.default_rng(0)

    def profile(table: TuningTable) -> GpuProfile:
        return GpuProfile(tables=(table,) if shipped is None else (table, shipped))

    def times(number: int, profiles: Sequence[GpuProfile]) -> list[list[float]]:
        chosen = [[one.choose(*shape, rows=number).kernel for shape in SHAPES] for one in profiles]
        sums = [sum(costs.get((kernel.name, n), 10.0) for kernel, (_, _, n) in zip(all, SHAPES, strict=True)) for all in chosen]
        return [[total * 1e-6 * (1 + noise * rng.uniform(-1, 1)) for _ in range(9)] for total in sums]

    test = StepTest(SHAPES, rows, profile, times)
    alone = TuningTable("measured", H200, measured)
    proposed = proposals(before, alone, "accurate", test)
    return keep(before, proposed, test, others=others(before, proposed, alone, "accurate", test, tries))


def test_a_kernel_that_is_faster_alone_and_slower_in_a_step_is_dropped() -> None:
    kept = tuned({(MWV, 64): 11.0}, SMALL)
    assert kept.table == EMPTY
    assert [one.proposal.entry for one in kept.dropped] == [SMALL]
    assert kept.dropped[0].reason == "slower: a step takes 21.00 us with it and 20.00 without, noise 0.00"
    (step,) = kept.steps
    assert (step.before, step.everything, step.kept) == pytest.approx((20e-6, 21e-6, 20e-6))


def test_of_several_those_are_taken_that_make_the_step_faster() -> None:
    kept = tuned({(MWV, 64): 15.0, (MWV, 1024): 8.0}, SMALL, LARGE)
    assert kept.table.entries == (LARGE,)
    assert [one.entry for one in kept.taken] == [LARGE]
    assert [one.proposal.entry for one in kept.dropped] == [SMALL]
    (step,) = kept.steps
    assert (step.before, step.everything, step.kept) == pytest.approx((20e-6, 23e-6, 18e-6))


def test_what_is_faster_all_at_once_is_taken_at_once() -> None:
    kept = tuned({(MWV, 64): 10.5, (MWV, 1024): 8.0}, SMALL, LARGE)
    assert kept.table.entries == (SMALL, LARGE)
    assert kept.dropped == ()


def test_what_is_not_the_fastest_alone_is_tried_in_steps_and_taken_where_it_is_the_fastest_there() -> None:
    names = "mwv_q4k_gemv", "vectorized_q4k_gemv", "wide_q4k_gemv", "coalesced_q4k_gemv"
    measured = [
        entry(4096, n, name, seconds=seconds * 1e-6, parameters={}) for n in (64, 1024) for seconds, name in enumerate(names, 1)
    ]
    costs = {("mwv_q4k_gemv", 64): 9.0, ("vectorized_q4k_gemv", 64): 9.5, ("wide_q4k_gemv", 64): 8.0} | {
        (name, 1024): 11.0 for name in names
    }
    kept = tuned(costs, *measured, tries=3)
    assert kept.table.entries == (measured[2],)
    assert [one.entry for one in kept.taken] == [measured[2]]
    assert kept.tried == 4
    first = next(one for one in kept.dropped if one.proposal.entry == measured[0])
    assert first.reason == "slower: a step takes 19.00 us with it and 18.00 without, noise 0.00"
    assert tuned(costs, *measured, tries=2).table.entries == (measured[0],)
    assert tuned(costs | {("coalesced_q4k_gemv", 64): 1.0}, *measured, tries=3).table.entries == (measured[2],)
    before = replace(EMPTY, entries=(measured[0],))
    assert tuned(costs, *measured, before=before, tries=3).table.entries == (measured[2],)


def test_a_gain_within_the_noise_keeps_the_old() -> None:
    kept = tuned({(MWV, 64): 9.98}, SMALL, noise=0.02)
    assert kept.table == EMPTY
    assert kept.dropped[0].reason.startswith("no faster beyond the noise: a step takes")
    assert tuned({(MWV, 64): 8.0}, SMALL, noise=0.02).table.entries == (SMALL,)


def test_an_entry_of_before_with_which_steps_are_slower_goes() -> None:
    before = replace(EMPTY, entries=(SMALL,))
    kept = tuned({(MWV, 64): 11.0}, SMALL, before=before)
    assert kept.table.entries == ()
    assert [one.entry for one in kept.taken] == [None]
    assert tuned({(MWV, 64): 9.0}, SMALL, before=before).table == before


def test_the_fastest_takes_the_place_of_all_that_the_table_has_for_the_shape() -> None:
    older = entry(4096, 64, seconds=1e-7)  # which would be chosen before it if it stayed
    other = entry(4096, 1024)
    kept = tuned({(MWV, 64): 9.0}, SMALL, before=replace(EMPTY, entries=(older, other)))
    assert kept.table.entries == (other, SMALL)


def test_what_is_chosen_anyway_is_not_timed() -> None:
    usual = entry(4096, 64, HW, parameters={"digits": 3})
    assert tuned({}, usual) == Kept(EMPTY)


def test_what_makes_steps_of_fewer_rows_slower_is_dropped() -> None:
    eight = entry(4096, 64, "mma_q4k_gemm", rows=8, parameters={"digits": 3})
    costs = {("mma_q4k_gemm", 64): 9.0}
    assert tuned(costs, eight, rows=(4, 8), shipped=SHIPPED).table.entries == (eight,)
    four = replace(
        SHIPPED, entries=(replace(SHIPPED.entries[0], kernel="half_mma_q4k_gemm", parameters={"parts": 2}), SHIPPED.entries[1])
    )
    kept = tuned(costs | {("half_mma_q4k_gemm", 64): 5.0}, eight, rows=(4, 8), shipped=four)
    assert kept.table == EMPTY
    assert [gain.rows for gain in kept.dropped[0].gains if gain.slower] == [4]


def test_what_was_taken_goes_if_steps_with_all_of_it_are_no_faster() -> None:
    """As if the first measurements had been luck."""
    lucky = iter([[[20.0] * 9, [19.0] * 9], [[20.0] * 9] * 3])
    test = StepTest(SHAPES, (1,), lambda table: GpuProfile(tables=(table,)), lambda rows, profiles: next(lucky))
    kept = keep(EMPTY, proposals(EMPTY, TuningTable("measured", H200, (SMALL,)), "accurate", test), test)
    assert kept.table == EMPTY
    assert kept.taken == ()
    assert "with all that had been taken" in kept.dropped[0].reason
