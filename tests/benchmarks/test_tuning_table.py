"""The shipped table of a GPU from benchmark results. The figures here are made up; the shipped table is made from the recorded
ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.tuning_table import IN_STEPS, several_rows, table, whole, with_steps
from executor.choice.store import load, shipped_path
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from ptxgen.errors import ArgumentError
from tests.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results"
MACHINE = {"name": "cuda:0 (NVIDIA H200)", "gpu": "sm_90", "multiprocessors": 132, "assembler": "nvjitlink 1"}


def record(*results: dict[str, Any], machine: dict[str, Any] = MACHINE) -> dict[str, Any]:
    return {"results": list(results), "machine": machine, "commit": "0123456789abcdef"}


def result(microseconds: float, digits: int = 3, k: int = 4096, n: int = 64, **parameters: Any) -> dict[str, Any]:
    usual = {"num_warps": 8, "rows_per_warp": 2, "ahead": 2, "resident_threads": 512, "pdl": False}
    return {
        "kernel": "hw_dp4a_q4k_gemv",
        "parameters": {"k": k, "n": n, "digits": digits, **usual, **parameters},
        "weight_bytes": 147456,
        "microseconds": {"median": microseconds},
    }


def test_the_fastest_parameters_of_a_shape_are_taken() -> None:
    (one,) = table([record(result(2.0), result(1.5, num_warps=4), result(1.7, num_warps=2))]).entries
    assert (one.precision, one.format, one.k, one.n, one.parameters["num_warps"]) == ("accurate", "q4k", 4096, 64, 4)
    assert one.seconds == pytest.approx(1.5e-6)
    assert one.bytes_per_second == pytest.approx(147456 / 1.5e-6)
    assert (one.versions, one.note) == ("commit 0123456, nvjitlink 1", "")


def test_the_defaults_stay_unless_something_is_faster_by_more_than_the_noise() -> None:
    (one,) = table([record(result(2.0), result(1.99, num_warps=4))]).entries
    assert one.parameters["num_warps"] == 8


def test_parameters_of_two_planes_stand_in_for_three_and_say_so_without_a_time() -> None:
    one, _ = table([record(result(1.5, digits=2, num_warps=4), result(1.5, digits=1))]).entries
    assert one.precision == "accurate"
    assert (one.parameters["num_warps"], one.seconds) == (4, None)
    assert one.note == "with 2 digits, not 3"
    assert "digits" not in one.parameters


def test_results_of_two_gpus_are_refused_and_so_are_results_of_nothing() -> None:
    other = MACHINE | {"name": "cuda:0 (NVIDIA L4)", "gpu": "sm_89"}
    with pytest.raises(ArgumentError, match="of 2 GPUs"):
        table([record(result(1.0)), record(result(1.0), machine=other)])
    with pytest.raises(ArgumentError, match="no kernel that is used by default"):
        table([record()])


def test_the_shipped_table_is_what_the_recorded_results_give() -> None:
    path = shipped_path(GpuModel("NVIDIA H200", "sm_90", 132))
    results = [
        json.loads((RESULTS / name).read_text())
        for name in ("gemv-hw-dp4a-h200.json", *(f"gemm-{of}-8b-h200.json" for of in ("halves", "few-rows", "sequences")))
    ]
    of_rows = whole(results, [load(RESULTS / "tune-rows-8b-h200.json")])
    shipped = with_steps(of_rows, [load(kept) for kept in sorted(RESULTS.glob("tune-steps-*-h200.json"))])
    assert shipped.entries == load(path, shipped=True).entries


def test_what_was_kept_in_steps_comes_before_what_was_the_fastest_alone_if_it_leaves_the_bits_alone() -> None:
    def kept(n: int, kernel: str = "hw_dp4a_q4k_gemv", rows: int = 1, **parameters: int) -> TuningEntry:
        return TuningEntry(
            "accurate", "q4k", 4096, n, kernel, parameters, seconds=1e-6, error=1e-7, measured="today", rows=rows
        )

    shipped = table([record(result(2.0), result(3.0, n=128))])
    entries = (
        kept(64, digits=3, num_warps=2), kept(64, digits=3, num_warps=8, rows=2),
        kept(128, digits=2, num_warps=2), kept(256, "mwv_q4k_gemv", num_warps=2),
    )  # fmt: skip
    found = with_steps(shipped, [TuningTable("own", shipped.gpu, entries)]).entries
    assert [(one.n, dict(one.parameters)["num_warps"], one.note) for one in found] == [(64, 2, IN_STEPS), (128, 8, "")]
    assert found[0].parameters == {"num_warps": 2}
    with pytest.raises(ArgumentError, match="so must be what was kept in steps"):
        with_steps(shipped, [TuningTable("own", GpuModel("NVIDIA L4", "sm_89", 58), entries)])


def test_for_several_rows_the_fastest_that_is_accurate_enough_is_taken() -> None:
    def entry(warps: int, seconds: float, rows: int = 8, error: float = 1e-7) -> TuningEntry:
        parameters = {"digits": 3, "warps": warps}
        return TuningEntry("accurate", "q4k", 4096, 64, "mma_q4k_gemm", parameters, seconds, error=error, rows=rows)

    measured = (entry(1, 3e-6), entry(2, 2e-6), entry(4, 1e-6, error=1e-3), entry(2, 5e-6, rows=32), entry(1, 1e-6, rows=1))
    (eight, more) = several_rows(TuningTable("tuned", GpuModel("NVIDIA H200", "sm_90", 132), measured))
    assert (eight, more) == (measured[1], measured[3])


def test_matrices_that_one_launch_multiplies_faster_have_its_kernel_and_their_share_of_its_time() -> None:
    def entry(kernel: str, n: int, seconds: float, row_tiles: int = 4) -> TuningEntry:
        parameters = {"parts": 2, "row_tiles": row_tiles}
        return TuningEntry("accurate", "q4k", 4096, n, kernel, parameters, seconds, error=1e-7, rows=8)

    def gate(*more: TuningEntry) -> tuple[str, object, float | None]:
        measured = (entry("half_mma_q4k_gemm", 14336, 10e-6), *more)
        table = TuningTable("tuned", GpuModel("NVIDIA H200", "sm_90", 132), measured)
        (one,) = (one for one in several_rows(table) if one.n == 14336)
        return one.kernel, one.parameters["row_tiles"], one.seconds

    both = entry("stationary_q4k_gemm", 2 * 14336, 16e-6)
    assert gate(both) == ("stationary_q4k_gemm", 4, 8e-6)
    slower = (entry("stationary_q4k_gemm", 14336, seconds, tiles) for seconds, tiles in ((13e-6, 2), (11e-6, 7)))
    assert gate(both, *slower) == ("stationary_q4k_gemm", 7, 8e-6)
    assert gate(entry("stationary_q4k_gemm", 2 * 14336, 21e-6)) == ("half_mma_q4k_gemm", 4, 10e-6)
    assert gate(entry("half_mma_q4k_gemm", 2 * 14336, 16e-6)) == ("half_mma_q4k_gemm", 4, 10e-6)  # which cannot be joined


def test_results_of_kernels_for_several_rows_count_where_their_error_is_allowed() -> None:
    def rows(microseconds: float, parts: int) -> dict[str, Any]:
        parameters = {"k": 4096, "n": 64, "m": 8, "parts": parts, "split": 8}
        return result(1.0) | {"kernel": "half_mma_q4k_gemm", "parameters": parameters, "microseconds": {"median": microseconds}}

    one, precise, fast = whole([record(result(1.0), rows(5.0, parts=2), rows(3.0, parts=1))], []).entries
    assert one.rows == 1
    assert (precise.precision, precise.rows, precise.parameters) == ("accurate", 8, {"parts": 2, "split": 8})
    assert (fast.precision, fast.rows, fast.parameters) == ("fast", 8, {"parts": 1, "split": 8})
    assert precise.seconds == pytest.approx(5e-6)
