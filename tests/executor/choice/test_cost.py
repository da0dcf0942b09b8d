"""The cost model is held to what was measured, and chooses for every known GPU what that GPU runs."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest

from executor.base.environment import PRECISIONS
from executor.choice.choice import GpuProfile
from executor.choice.cost import COSTS, UNPACKING, CostModel
from executor.device.gpu import GpuModel
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.explain.loops import executions, find_loops
from ptxgen.formats import ALL, FORMATS
from ptxgen.gpus.gpu import GPUS, Gpu
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm
from ptxgen.kernels.gemm.wgmma_gemm import WgmmaGemm
from ptxgen.kernels.registry import entries_of, find
from ptxgen.target import HOPPER, Target
from ptxgen.toolchain.module import emit
from ptxgen.verify.cfg import graph
from tests.paths import ROOT

FITTED = ("gemm-halves-8b-h200.json", "gemm-few-rows-8b-h200.json", "gemm-sequences-8b-h200.json")
LATER = ("suited-products-h200.json",)
"""Sweeps that its figures were fitted to, of Q4_K and Q6_K; and one that was measured afterwards, of other formats, too."""
NEAR = 1.1
"""What is chosen may take so much longer than the fastest that was measured, for nine of ten shapes."""
ROWS = (1, 2, 4, 8, 16, 32, 128, 512, 2048)
Measured = tuple[KernelType, float]


def sweeps(files: tuple[str, ...]) -> Iterator[tuple[KernelType, int, float]]:
    """Kernels of the accurate precision, their rows and microseconds."""
    for name in files:
        for result in json.loads((ROOT / "benchmarks" / "results" / name).read_text())["results"]:
            entry, given, took = find(result["kernel"]), result["parameters"], result["microseconds"]
            if given.get("parts", 2) != 2 or given.get("n2"):
                continue
            with suppress(ArgumentError):  # settings that no longer are
                kernel = entry.make(**{name: value for name, value in given.items() if name in entry.parameters})
                yield kernel, given["m"], took if isinstance(took, float) else took["median"]


@pytest.mark.parametrize(("files", "least"), [(FITTED, 80), (LATER, 33)], ids=["fitted", "later"])
def test_what_it_chooses_of_a_sweep_is_nearly_the_fastest_nine_times_of_ten(files: tuple[str, ...], least: int) -> None:
    groups: dict[tuple[object, ...], list[Measured]] = defaultdict(list)
    model = CostModel(GPUS["h200"], HOPPER)
    for kernel, m, microseconds in sweeps(files):
        format = re.sub("^.*?(i?q[0-9].*)_gem[mv]$", r"\1", kernel.name)
        groups[format, kernel.parameters()["k"], kernel.parameters()["n"], m].append((kernel, microseconds))
    several = {shape: group for shape, group in groups.items() if len(group) >= 2 + (files is FITTED)}
    assert len(several) >= least
    slow = []
    for shape, group in several.items():
        expected = [model.microseconds(kernel, int(str(shape[-1]))) for kernel, _ in group]
        chosen, measured = group[expected.index(min(expected))]
        if measured > NEAR * min(one for _, one in group):
            slow.append(str(chosen))
    assert len(slow) <= len(several) / 10, slow


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
def test_every_gpu_gets_a_kernel_that_runs_on_it(gpu: Gpu) -> None:
    profile = GpuProfile.for_gpu(
        GpuModel(f"NVIDIA {gpu.title} of a later year", str(gpu.target), gpu.multiprocessors), gpu.target
    )
    for name, rows in product(("Q4_K", "Q5_K", "Q8_0", "IQ3_S", "F16"), ROWS):
        kernel = profile.choose(FORMATS[name], 4096, 14336, rows=rows).kernel
        assert kernel.runs_on(gpu.target)
        assert kernel.launch().dynamic_shared <= gpu.target.max_shared


def test_a_gpu_that_nobody_lists_is_taken_as_it_is_described_and_a_known_one_as_it_is_listed() -> None:
    def expected_on(name: str, card: Gpu | None = None) -> Gpu:
        costs = GpuProfile.for_gpu(GpuModel(name, "sm_89", 46), Target(89), card=card).costs
        assert costs is not None
        return costs.gpu

    described = replace(GPUS["rtx4090"], product="NVIDIA GeForce RTX 4070", multiprocessors=46, bandwidth_gbps=504)
    assert expected_on(described.product, described) == described
    assert expected_on(described.product).multiprocessors == 46
    assert expected_on("NVIDIA L4", described) == GPUS["l4"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_prompts_are_multiplied_by_tensor_cores_wherever_there_are_some(precision: str) -> None:
    for gpu, format in product(GPUS.values(), (FORMATS["Q5_K"], FORMATS["Q4_0"], FORMATS["IQ2_XS"])):
        found = CostModel(gpu, gpu.target).cheapest(format, 4096, 4096, 512, precision)
        assert found is not None
        dot_is_as_fast = gpu.sm == 103  # whose int8 tensor units do 256 products a clock, as dp4a
        assert gpu.sm < 80 or dot_is_as_fast or type(found[0]) in COSTS


def test_formats_that_no_table_has_get_the_best_strategy_of_a_measured_gpu() -> None:
    profile = GpuProfile.for_gpu(GpuModel("NVIDIA H200", "sm_90", 132), HOPPER)
    assert isinstance(profile.choose(FORMATS["Q5_K"], 5120, 7680, rows=512).kernel, WgmmaGemm)
    assert isinstance(profile.choose(FORMATS["Q4_1"], 5120, 7680, rows=512).kernel, MmaGemm)


SETTINGS: dict[type[KernelType], dict[str, int]] = {
    MmaGemm: {"digits": 3, "warps": 4, "tile": 8, "split": 1},
    HalfMmaGemm: {"parts": 2, "split": 8, "tile": 8, "row_tiles": 1, "chains": 1},
    StationaryGemm: {"parts": 2, "row_tiles": 2, "columns": 8, "split": 8, "chains": 1, "resident_threads": 256},
}
"""Of the products of 8 rows whose instructions are counted; those of `wgmma` are fitted."""
COUNTED = [(kind, entry.name) for kind in SETTINGS for entry in entries_of(kind)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*one, marks=() if one[1].endswith("_q5k_gemm") else pytest.mark.slow, id=one[1]) for one in COUNTED],
)
def test_unpacking_is_as_many_instructions_as_the_text_has(kind: type[KernelType], name: str) -> None:
    k = n = 4096
    entry = find(name)
    kernel = entry.make(k=k, n=n, m=8, **SETTINGS[kind])
    body = graph(emit(kernel, HOPPER).function)
    times = executions(body, find_loops(body))
    counted = sum(times[number] * len(body.blocks[number].ops) for number in body.order)
    weights = k * n / kernel.launch().blocks / kernel.launch().threads
    assert counted / weights == pytest.approx(UNPACKING[kind][entry.fixed["format"].id], abs=0.1)


def test_every_format_of_a_strategy_has_its_cost_of_unpacking() -> None:
    for kind in COSTS:
        formats = {entry.fixed["format"] for entry in entries_of(kind)}
        assert {format.id for format in ALL.values() if format in formats} == set(UNPACKING[kind])
