"""A graph whose launches overlap, in any order that a seed chooses, has the bits of launches one after another; the race that
weight pipelines had when nothing ordered reads of a stage before the copy that refills it is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pytest

from executor.base.errors import SanitizerError
from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from executor.launch import graph, modules
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.model.generation import LanguageModel
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.emulator import Finding
from ptxgen.formats import FORMATS
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.toolchain.module import emit
from tests.executor.model import test_gathered_planes as fused
from tests.executor.model.test_dependent_launches import CONTEXT, decoded
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

PIPELINED = HwDp4aGemv(format=FORMATS["Q8_0"], k=1024, n=53, digits=1, num_warps=2, row_groups=8, stages=2)
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
        plans.append(launcher.prepare_dependent(quantize, x=x, **planes))
        plans.append(launcher.prepare_dependent(PIPELINED, y=products[-1], w=w, **planes))
    if as_graph:
        captured = LaunchGraph(device, plans)
        assert [node.dependent for node in captured.nodes] == [True] * 4
        captured.replay()
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
    monkeypatch.setattr(modules, "emit", emit)  # which writes the kernel anew
    with pytest.raises(SanitizerError) as caught:
        chain(EmulatedDevice(sanitize=True, seed=seed, overlaps=True), as_graph=True)
    found = cast(list[Finding], caught.value.findings)
    assert {one.kind for one in found} == {"unfenced"}
    assert all(" read, " in one.message and "with no fence.proxy.async since" in one.message for one in found)
    assert all("cp.async.bulk" in one.ptx_text for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_model_whose_launches_overlap_has_the_bits_of_one_whose_launches_wait(seed: int, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q4_K, layers=2, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT)
    waiting, _ = decoded(path, EmulatedDevice(), dependent=False)
    overlapping, _ = decoded(path, EmulatedDevice(sanitize=True, seed=seed, overlaps=True), dependent=True)
    assert overlapping == waiting


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_so_has_one_with_every_fusion(seed: int, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", fused.MIXED, **fused.SIZES)

    def logits(device: EmulatedDevice, profile: GpuProfile) -> list[bytes]:
        with LanguageModel.load(path, device, context=fused.CONTEXT, profile=profile) as model:
            found = []
            for token in fused.TOKENS:
                model.decoder.step(token)
                found.append(model.decoder.logits().tobytes())
            return found

    overlapping = EmulatedDevice(sanitize=True, seed=seed, overlaps=True)
    assert logits(overlapping, fused.ALL) == logits(EmulatedDevice(), GpuProfile())


def test_a_start_that_the_plan_should_not_have_made_is_found_by_running_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that a launch before writes, read before the wait: without the plan's rule and its check."""
    rule = Plan.node
    monkeypatch.setattr(Plan, "node", lambda self, after, written=(), stamps=None: rule(self, after, (), stamps))
    monkeypatch.setattr(graph, "check_dependent_launches", lambda launches: None)
    device = EmulatedDevice(sanitize=True, overlaps=True)
    launcher = Launcher(device, Modules(device))
    kernel = HwDp4aGemv(format=FORMATS["Q8_0"], k=32, n=8, digits=1, pdl=True)
    arguments = {
        name: GpuBuffer.from_numpy(device, value, name=name) for name, value in kernel.inputs(np.random.default_rng(1)).items()
    }
    words = arguments["w"].nbytes // 4
    add = AddInPlace(n=words)
    x, delta = arguments["w"].view(0, (words,), "f32"), GpuBuffer.zeros(device, "f32", (words,))
    plans = [launcher.prepare_dependent(add, x=x, delta=delta), launcher.prepare(kernel, **arguments)]
    with pytest.raises(SanitizerError, match=r"race: hw_dp4a_q8_0_gemv, .* residual_add, a launch that may still run"):
        LaunchGraph(device, plans).replay()
