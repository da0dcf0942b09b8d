"""What follows from measurements, and how they are made. The tables that keep them: test_tuning_tables.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.choice.choice import GpuProfile
from executor.choice.store import add, load
from executor.choice.strategies import ERROR_LIMIT, default_strategy
from executor.choice.table import TuningTable
from executor.device.emulated import EmulatedDevice
from executor.device.gpu import GpuModel
from executor.device.protocol import LoadedKernel
from executor.tune.candidates import candidates
from executor.tune.tune import tune, winners
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.kernels import registry
from ptxgen.kernels.compose import for_rows
from ptxgen.kernels.gemm import suited
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.gemv.basic import Gemv
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.mwv import FOR_SEVERAL, MwvGemv
from ptxgen.target import HOPPER, Target
from tests.executor.tune.measured import H200, HW, MWV, Q4_K, Q6_K, entry, profile
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.running import emulate, inputs

SM_90 = Target(90)  # the oldest that has programmatic launches

SETTINGS: dict[type[KernelType], tuple[KernelType, list[dict[str, Any]]]] = {
    HwDp4aGemv: (
        HwDp4aGemv(Q4_K, k=2304, n=19, digits=2),
        [
            {"num_warps": 4, "rows_per_warp": 1, "pdl": True},
            {"num_warps": 2, "rows_per_warp": 3, "ahead": 1, "resident_threads": 256},
            {"rows_per_warp": 1, "row_groups": 2},
            {"rows_per_warp": 1, "row_groups": 2, "stages": 2},
            {"rows_per_warp": 1, "row_groups": 2, "stages": 3, "holds_next": True},
        ],
    ),
    MwvGemv: (MwvGemv(Q6_K, k=4096, n=5), [{"rows_per_block": 1}, {"rows_per_block": 4, "resident_threads": 256}]),
}


def test_a_kernel_for_one_gpu_alone_is_not_chosen_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MwvGemv, "only_on", HOPPER)
    table = TuningTable("a table", H200, (entry(4096, 64), entry(4096, 64, MWV, parameters={})))
    assert table.running_on(SM_90) is table
    assert [one.kernel for one in table.running_on(Target(100)).entries] == [HW]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SETTINGS)
def test_parameters_said_to_be_free_of_bits_leave_the_bits_alone(strategy: type[KernelType]) -> None:
    kernel, others = SETTINGS[strategy]
    assert set().union(*others) == set(strategy.bit_free)  # each is tried
    given = inputs(kernel)
    expected = emulate(kernel, given, target=SM_90, sanitize=False)[0]["y"]
    for other in others:
        np.testing.assert_array_equal(emulate(replace(kernel, **other), given, target=SM_90, sanitize=False)[0]["y"], expected)


def test_the_warps_of_mwv_are_not_said_to_be_free_of_bits_because_they_are_not() -> None:
    kernel = MwvGemv(Q6_K, k=4096, n=64)
    given = inputs(kernel)
    one, other = (emulate(replace(kernel, num_warps=warps), given)[0]["y"] for warps in (2, 4))
    assert np.any(one != other)
    assert "num_warps" not in MwvGemv.bit_free


def test_without_tables_every_device_uses_the_same_kernel() -> None:
    choice = GpuProfile().choose(Q4_K, 4096, 4096)
    assert choice.kernel == HwDp4aGemv(Q4_K, k=4096, n=4096, digits=3)
    assert (choice.reason, choice.entry) == ("accurate: 3 int8 planes of the activations", None)


def test_the_fastest_measured_kernel_within_the_error_of_the_precision_is_chosen() -> None:
    entries = (
        entry(4096, 64, seconds=3e-6),
        entry(4096, 64, MWV, seconds=2e-6, parameters={"num_warps": 2}),
        entry(4096, 64, seconds=1e-6, error=2e-5, parameters={"digits": 2}),
    )
    choice = profile(*entries).choose(Q4_K, 4096, 64)
    assert choice.kernel == MwvGemv(Q4_K, k=4096, n=64, num_warps=2)
    assert choice.entry == entries[1]
    assert choice.reason == "accurate: the fastest of what was measured on NVIDIA H200"


def test_a_measurement_without_its_error_or_of_another_precision_wins_nothing() -> None:
    of_others = (entry(4096, 64, MWV, parameters={}, error=None), entry(4096, 64, MWV, "fast", parameters={}))
    assert profile(*of_others).choose(Q4_K, 4096, 64).kernel == HwDp4aGemv(Q4_K, k=4096, n=64, digits=3)


def test_an_entry_for_any_number_of_rows_counts_where_none_is_for_this_one() -> None:
    some = profile(entry(4096, None, MWV, seconds=1e-6, parameters={"num_warps": 2}), entry(4096, 64, seconds=5e-6))
    assert some.choose(Q4_K, 4096, 64).kernel.name == HW
    assert some.choose(Q4_K, 4096, 65).kernel == MwvGemv(Q4_K, k=4096, n=65, num_warps=2)


MANY = (
    entry(4096, 64, seconds=8e-6, rows=8),
    entry(4096, 64, MWV, seconds=9e-6, rows=8, parameters={"num_warps": 2}),
    entry(4096, 64, "batched_q4k_gemv", seconds=2e-5, rows=64, parameters={"num_warps": 2}),
    entry(4096, 64, MWV, seconds=1e-6, rows=64, error=2e-5, parameters={"num_warps": 2}),
    entry(4096, None, MWV, seconds=1e-9, rows=8, parameters={"num_warps": 8}),
)


@pytest.mark.parametrize(
    ("rows", "kernel"),
    [
        (1, HwDp4aGemv(Q4_K, k=4096, n=64, digits=3)),
        (2, HwDp4aGemv(Q4_K, k=4096, n=64, digits=3, num_warps=4)),
        (8, HwDp4aGemv(Q4_K, k=4096, n=64, digits=3, num_warps=4)),
        (16, HwDp4aGemv(Q4_K, k=4096, n=64, digits=3, num_warps=4)),
        (17, MwvGemv(Q4_K, k=4096, n=64, m=17, num_warps=2, resident_threads=FOR_SEVERAL)),
        (65, MwvGemv(Q4_K, k=4096, n=64, m=65, num_warps=2, resident_threads=FOR_SEVERAL)),
    ],
)
def test_rows_get_what_takes_least_for_them_by_what_was_measured_for_more_or_as_often_as_it_takes(
    rows: int, kernel: KernelType
) -> None:
    choice = profile(*MANY).choose(Q4_K, 4096, 64, rows=rows)
    assert choice.kernel == kernel
    measured = None if rows == 1 else 8 if rows <= 16 else 64
    assert (choice.entry and choice.entry.rows) == measured
    assert ("measured for" in choice.reason) == (measured is not None)


def test_what_a_user_measured_for_fewer_rows_comes_before_what_is_shipped_for_more_only_where_it_is_faster() -> None:
    own = profile(entry(4096, 64, seconds=3e-6, rows=8)).tables
    shipped = profile(entry(4096, 64, MWV, seconds=8e-6, rows=64, parameters={"num_warps": 2}), shipped=True).tables
    both = GpuProfile(tables=(*own, *shipped))
    names = [both.choose(Q4_K, 4096, 64, rows=rows).kernel.name for rows in (8, 16, 24, 64)]
    assert names == [HW, HW, MWV, MWV]


@given(times=st.dictionaries(st.integers(2, 64), st.floats(1e-7, 1e-4), min_size=1, max_size=4), rows=st.integers(2, 128))
def test_twice_the_rows_never_take_more_than_twice_the_time(times: dict[int, float], rows: int) -> None:
    chosen = profile(*(entry(4096, 64, seconds=seconds, rows=of) for of, seconds in times.items()))
    once, twice = (chosen.choose(Q4_K, 4096, 64, rows=number).entry for number in (rows, 2 * rows))
    assert once is not None
    assert twice is not None
    assert twice.most_seconds(2 * rows) <= 2 * once.most_seconds(rows)


def test_rows_without_a_measurement_get_the_fastest_kernel_for_one_that_has_a_form_for_them() -> None:
    unformed = entry(4096, 64, "dp4a_q4k_gemv", seconds=1e-7, parameters={})
    some = profile(unformed, entry(4096, 64, "q4k_gemv", parameters={}))
    assert some.choose(Q4_K, 4096, 64).kernel.name == "dp4a_q4k_gemv"
    assert some.choose(Q4_K, 4096, 64, rows=2).kernel == Gemv(Q4_K, k=4096, n=64)
    assert profile(unformed).choose(Q4_K, 4096, 64, rows=2).kernel == HwDp4aGemv(Q4_K, k=4096, n=64, digits=3)


def test_where_bits_must_not_depend_on_the_number_of_rows_one_kernel_does_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    unlike = entry(4096, 64, "q4k_gemv", seconds=1e-7, parameters={})
    some = profile(*MANY, unlike, entry(4096, 64, MWV, parameters={"num_warps": 2})).with_rules("batch_invariant")
    for rows in (1, 8, 64, 65):
        assert some.choose(Q4_K, 4096, 64, rows=rows).kernel == MwvGemv(Q4_K, k=4096, n=64, num_warps=2)
    with pytest.raises(ArgumentError, match=r"q4k_gemv has no form .*with the bits of one; the profile is batch_invariant"):
        replace(some, gemv={"q4k": "q4k_gemv"}).choose(Q4_K, 4096, 64)
    monkeypatch.setenv("PTXGEN_BATCH_INVARIANT", "1")
    assert GpuProfile.from_environment() == GpuProfile().with_rules("batch_invariant")


def test_rows_may_be_fast_by_what_was_measured_for_accurate_ones_and_not_the_other_way_round() -> None:
    several: dict[str, Any] = {"rows": 8, "error": 1e-7, "parameters": {"digits": 3}, "kernel": "mma_q4k_gemm"}
    accurate, fast = entry(4096, 64, seconds=2e-6, **several), entry(4096, 64, precision="fast", seconds=1e-6, **several)
    for measured, counts_for in ((accurate, ["accurate", "fast"]), (fast, ["fast"])):
        for precision in ("accurate", "fast"):
            choice = profile(measured, shipped=True, precision=precision).choose(Q4_K, 4096, 64, rows=5)
            assert (choice.entry == measured) == (precision in counts_for)
    assert profile(accurate, fast, shipped=True, precision="fast").choose(Q4_K, 4096, 64, rows=5).entry == fast
    assert profile(accurate, precision="fast").choose(Q4_K, 4096, 64).entry is None


def test_what_the_user_names_does_for_several_rows_too() -> None:
    assert replace(profile(*MANY), gemv={"q4k": MWV}).choose(Q4_K, 4096, 64, rows=8).kernel == MwvGemv(Q4_K, k=4096, n=64)


def test_parameters_for_one_row_are_not_taken_from_what_was_measured_for_several() -> None:
    assert profile(*MANY).choose(Q4_K, 4096, 128).kernel == HwDp4aGemv(Q4_K, k=4096, n=128, digits=3)


def test_of_the_nearest_shape_only_parameters_that_leave_the_bits_alone_are_taken() -> None:
    near = (
        entry(4096, 4096, parameters={"digits": 3, "num_warps": 4, "rows_per_warp": 1}),
        entry(4096, 4096, MWV, seconds=1e-9, parameters={"num_warps": 2}),
        entry(4096, 4096, seconds=1e-9, parameters={"digits": 2, "num_warps": 2}),
        entry(512, 512, parameters={"digits": 3, "num_warps": 1}),
    )
    choice = profile(*near).choose(Q4_K, 4096, 6144)
    assert choice.kernel == HwDp4aGemv(Q4_K, k=4096, n=6144, digits=3, num_warps=4, rows_per_warp=1)
    assert "for 4096 x 4096, the nearest shape" in choice.reason
    assert choice.entry is None


def test_an_input_with_an_outlier_gets_what_the_accurate_precision_has() -> None:
    fast = profile(entry(4096, 64, precision="fast", parameters={"digits": 1}), entry(4096, 64), precision="fast")
    assert fast.choose(Q4_K, 4096, 64).kernel == HwDp4aGemv(Q4_K, k=4096, n=64, digits=1)
    assert fast.choose(Q4_K, 4096, 64, accurate=True).kernel == HwDp4aGemv(Q4_K, k=4096, n=64, digits=3, num_warps=4)


def test_what_the_user_names_comes_before_any_table() -> None:
    named = replace(profile(entry(4096, 64)), gemv={"q4k": "q4k_gemv"})
    assert named.choose(Q4_K, 4096, 64).kernel == Gemv(Q4_K, k=4096, n=64)


def test_candidates_are_what_the_precision_allows_and_their_parameters_make_them_again() -> None:
    accurate, fast = (candidates(Q4_K, 4096, 64, precision) for precision in ("accurate", "fast"))
    assert {one.kernel.parameters().get("digits") for one in accurate} == {None, 3}
    assert {one.kernel.parameters().get("digits") for one in fast} == {None, 1, 2, 3}
    assert all(one.error <= ERROR_LIMIT["accurate"] for one in accurate)
    names = {one.entry.name for one in accurate}
    assert {HW, MWV, "q4k_gemv", "dp4a_q4k_gemv"} <= names
    assert not any("q6k" in name or "batched" in name for name in names)
    assert all(one.entry.make(k=4096, n=64, **one.parameters) == one.kernel for one in fast)


def test_candidates_for_rows_take_them_at_once_or_have_a_form_of_their_own_each_once() -> None:
    some = candidates(Q4_K, 4096, 64, "accurate", rows=16)
    assert {one.entry.name for one in some} >= {HW, MWV, "mma_q4k_gemm", "batched_q4k_gemv"}
    assert all(("m" in one.kernel.parameters()) == ("m" in one.entry.parameters) for one in some)
    assert [one.parameters["num_warps"] for one in some if one.entry.name == MWV] == [2, 4, 8]
    assert [one.parameters["digits"] for one in some if one.entry.name == HW] == [3]
    assert "batched_hw_dp4a_q4k_gemv" in {one.entry.name for one in candidates(Q4_K, 4096, 64, "accurate", rows=8)}
    assert all("m" not in one.parameters for one in some)


def test_kernels_on_an_f16_split_are_tried_in_the_parts_that_a_precision_allows_and_tiles_with_room_for_the_rows() -> None:
    tried = {
        (precision, rows): candidates(Q4_K, 4096, 64, precision, "half_mma_*", rows)
        for precision in ("accurate", "fast")
        for rows in (8, 32)
    }
    assert {one.parameters["parts"] for one in tried["accurate", 8]} == {2}
    assert {one.parameters["parts"] for one in tried["fast", 8]} == {1, 2}
    assert {one.kernel.blocks.column_tiles for one in tried["accurate", 8]} == {1}  # type: ignore[attr-defined]
    assert {one.parameters["tile"] for one in tried["accurate", 32]} == {8, 16, 32}
    assert {one.parameters["split"] for one in tried["accurate", 8]} >= {4, 8}
    for (_, rows), some in tried.items():
        assert suited.half_mma(Q4_K, k=4096, n=64, m=rows, parts=2) in [one.kernel for one in some]
    assert candidates(Q4_K, 4096, 64, "fast", "half_mma_*") == []


def test_kernels_on_an_f16_split_are_chosen_for_several_rows_and_never_where_bits_must_not_depend_on_them() -> None:
    two, one = (
        entry(4096, 64, "half_mma_q4k_gemm", precision, rows=8, seconds=seconds, error=error, parameters={"parts": parts})
        for precision, parts, seconds, error in (("accurate", 2, 2e-6, 1e-7), ("fast", 1, 1e-6, 1e-4))
    )
    for precision, parts in (("accurate", 2), ("fast", 1)):
        chosen = profile(two, one, shipped=True, precision=precision)
        assert chosen.choose(Q4_K, 4096, 64, rows=5).kernel == HalfMmaGemm(Q4_K, k=4096, n=64, m=5, parts=parts)
        for one_row in (chosen.choose(Q4_K, 4096, 64), chosen.with_rules("batch_invariant").choose(Q4_K, 4096, 64, rows=5)):
            assert one_row.kernel == default_strategy(Q4_K, precision).make(4096, 64)
    flagged = profile(two, one, precision="fast").choose(Q4_K, 4096, 64, accurate=True, rows=5)
    assert flagged.kernel.activation_f16_split == HalfForm(2, 64)


def test_rows_are_tuned_and_the_table_chooses_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.tune.candidates.GRID", {"num_warps": (2,), "rows_per_block": (1, 2)})
    shapes, rows = [(FORMATS["F16"], 64, 5)], (1, 9)
    with EmulatedDevice() as device:
        done = tune(device, shapes, "accurate", tmp_path / "t.json", rows=rows, pattern="mwv_f16_gemv", runs=1)
    assert (done.measured, done.left_out) == (2 + 1, ())  # rows_per_block is nothing to the form for several rows
    table = load(tmp_path / "t.json")
    assert [entry.rows for _, entry in winners(table, shapes, "accurate", rows)] == [1, 9]
    for m in rows:
        choice = GpuProfile(tables=(table,)).choose(*shapes[0], rows=m)
        assert choice.entry is not None
        assert choice.entry.rows == m


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> type[Gemv]:
    """A registered kernel of another package, and one that computes nonsense."""
    monkeypatch.setattr(registry, "_entries", dict(registry.entries()))

    @registry.register(format=[Q4_K])
    @dataclass(frozen=True)
    class Strange(Gemv):
        """The basic one under another name."""

        name = "strange_q4k_gemv"

    @registry.register(format=[Q4_K])
    @dataclass(frozen=True)
    class Wrong(Gemv):
        """Its reference is not what it computes."""

        name = "strange_wrong_q4k_gemv"

        def reference(self, **arguments: Any) -> dict[str, Any]:
            return {"y": 2 * super().reference(**arguments)["y"]}

    return Strange


def test_tuning_measures_keeps_and_goes_on_where_it_stopped(tmp_path: Path, stranger: type[Gemv]) -> None:
    path = tmp_path / "t.json"
    shapes = [(Q4_K, 256, 5), (Q4_K, 512, 3)]
    steps: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        steps.append((done, total))
        if done == 3:
            raise KeyboardInterrupt

    with EmulatedDevice() as device:
        before = device.memory().allocated
        with pytest.raises(KeyboardInterrupt):
            tune(device, shapes, "accurate", path, pattern="strange*", runs=1, progress=stop)
        assert steps[-1] == (3, 4)
        assert [one.kernel for one in load(path).entries] == ["strange_q4k_gemv"] * 2  # each was kept at once
        done = tune(device, shapes, "accurate", path, pattern="strange*", runs=1)
        again = tune(device, shapes, "accurate", path, pattern="strange_q4k*", runs=1, again=True)
        assert device.memory().allocated == before
    assert (done.measured, done.known) == (0, 2)
    assert [name.partition("(")[0] for name, _ in done.left_out] == ["strange_wrong_q4k_gemv"] * 2
    assert all("times the tolerance off" in reason for _, reason in done.left_out)
    assert (again.measured, again.known) == (2, 0)
    (shape, best), _ = winners(done.table, shapes, "accurate")
    assert shape == shapes[0]
    assert (best.kernel, best.clock) == ("strange_q4k_gemv", "host")
    assert best.seconds is not None
    assert best.error is not None
    assert best.bytes_per_second == pytest.approx(5 * Q4_K.row_bytes(256) / best.seconds)
    assert 0 < best.error < 1e-6  # f32 sums of 256 products


def test_a_pattern_that_nothing_matches_is_an_error(tmp_path: Path) -> None:
    with EmulatedDevice() as device, pytest.raises(ArgumentError, match="no kernel with a name like 'none_\\*' multiplies"):
        tune(device, [(Q4_K, 256, 5)], "accurate", tmp_path / "t.json", pattern="none_*")


def test_entries_of_other_versions_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with EmulatedDevice() as device:
        tune(device, [(Q4_K, 256, 5)], "accurate", path, pattern="q4k_gemv", runs=1)
        (old,) = load(path).entries
        add(path, GpuModel.of(device), replace(old, versions="older"))
        assert tune(device, [(Q4_K, 256, 5)], "accurate", path, pattern="q4k_gemv", runs=1).measured == 1
    (new,) = load(path).entries
    assert new.versions == old.versions


def test_kernels_that_were_measured_do_not_stay_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmulatedDevice() as device:
        loaded: list[LoadedKernel] = []
        load_kernel = device.load

        def counted(*arguments: Any) -> tuple[LoadedKernel, bool]:
            made = load_kernel(*arguments)
            loaded.append(made[0])
            return made

        monkeypatch.setattr(device, "load", counted)
        monkeypatch.setattr(device, "unload", loaded.remove)
        assert tune(device, [(Q4_K, 256, 5)], "accurate", tmp_path / "t.json", pattern="q4k_gemv", runs=1).measured == 1
        assert loaded == []


def test_a_batch_takes_what_decides_bits_from_the_kernel_for_one_row_and_no_parameter_that_was_measured_for_it() -> None:
    tuned = HwDp4aGemv(Q4_K, k=4096, n=128256, digits=3, num_warps=4, rows_per_warp=4, resident_threads=256)
    assert for_rows(tuned, 8) == (gemvs.batched(Q4_K, m=8, k=4096, n=128256, digits=3),)
    team = MwvGemv(FORMATS["F16"], k=4096, n=64, num_warps=8, rows_per_block=1)
    assert for_rows(team, 8) == (MwvGemv(FORMATS["F16"], m=8, k=4096, n=64, num_warps=8, resident_threads=FOR_SEVERAL),)
