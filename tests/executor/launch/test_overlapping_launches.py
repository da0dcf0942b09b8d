"""A graph whose launches overlap, in any order that a seed chooses, has the bits of launches one after another; the race that
weight pipelines had when nothing ordered reads of a stage before the copy that refills it is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pytest

from executor.base.errors import SanitizerError
from executor.device.emulated import EmulatedDevice
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.emulator import Finding
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.quantize.quantize import Quantize
from tests.executor.model.test_early_launches import CONTEXT, decoded
from tests.synthetic import Q, write_model

PIPELINED = HwDp4aGemv(format=FORMATS["Q8_0"], k=1024, n=53, digits=1, num_warps=2, turns=8, ring=2)
"""Each stage of its pipeline is refilled."""
SEEDS: Final = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]


def chain(device: EmulatedDevice, *, as_graph: bool) -> bytes:
    """Twice: activations to int8 planes, and those times weights; the products, of one graph or of launches by themselves."""
    rng = np.random.default_rng(7)
    launcher = Launcher(device, Modules(device))
    w = GpuBuffer.from_numpy(device, PIPELINED.inputs(rng)["w"], name="w")
    quantize = Quantize(count=1, n=PIPELINED.k, rows=1)
    arrays = {name: array for name, array in quantize.signature().items() if isinstance(array, Array) and name != "x"}
    planes = {name: GpuBuffer.empty(device, array.dtype, array.shape, name) for name, array in arrays.items()}
    plans, products = [], []
    for step in range(2):
        x = GpuBuffer.from_numpy(device, rng.standard_normal((1, PIPELINED.k), np.float32), name=f"x {step}")
        products.append(GpuBuffer.empty(device, "f32", (PIPELINED.n,), f"y {step}"))
        plans.append(launcher.prepare_early(quantize, x=x, **planes))
        plans.append(launcher.prepare_early(PIPELINED, y=products[-1], w=w, **planes))
    if as_graph:
        graph = LaunchGraph(device, plans)
        assert [node.early for node in graph.nodes] == [True] * 4
        graph.replay()
    else:
        for plan in plans:
            plan()
    return b"".join(one.to_numpy().tobytes() for one in products)


@pytest.mark.parametrize("seed", SEEDS)
def test_overlapping_launches_have_the_bits_of_launches_one_after_another(seed: int) -> None:
    alone = chain(EmulatedDevice(), as_graph=False)
    for sanitize in (False, True):
        assert chain(EmulatedDevice(sanitize=sanitize, seed=seed, overlaps=True), as_graph=True) == alone


@pytest.mark.parametrize("seed", SEEDS)
def test_without_the_proxy_fence_a_refill_races_with_the_reads_before_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fence(self: KernelBuilder, **modifiers: Any) -> None: ...

    monkeypatch.setattr(KernelBuilder, "fence_proxy", no_fence, raising=False)
    with pytest.raises(SanitizerError) as caught:
        chain(EmulatedDevice(sanitize=True, seed=seed, overlaps=True), as_graph=True)
    found = cast(list[Finding], caught.value.findings)
    assert {one.kind for one in found} == {"unfenced"}
    assert all(" read, " in one.message and "with no fence.proxy.async since" in one.message for one in found)
    assert all("cp.async.bulk" in one.ptx_text for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_model_whose_launches_overlap_has_the_bits_of_one_whose_launches_wait(seed: int, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q4_K, layers=2, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT)
    waiting, _ = decoded(path, EmulatedDevice(), early=False)
    overlapping, _ = decoded(path, EmulatedDevice(sanitize=True, seed=seed, overlaps=True), early=True)
    assert overlapping == waiting
