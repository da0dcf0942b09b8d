"""Digits and halves are made once for all kernels that read the same of the same activations, and anew when these change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from executor.launch.launch import Launcher, LaunchRecord
from executor.launch.modules import Modules
from executor.layers.ffn import FeedForward, FfnBuffers, feed_forward
from executor.layers.graph.graph import Setting, StepGraph
from executor.layers.graph.operations import Add, Norm
from executor.layers.graph.products import project
from executor.layers.graph.rules import leave_forms, perform
from executor.layers.graph.values import StepValue
from executor.layers.projection import Projection, require_fit
from executor.layers.session import Session
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm
from ptxgen.kernels.gemv.mwv import FOR_SEVERAL, MwvGemv
from tests.executor.layers.plain_f16_split import PlainHalvesGemm

pytestmark = pytest.mark.usefixtures("shared_kernels")

F16, Q8_0 = FORMATS["F16"], FORMATS["Q8_0"]
M, K, N = 3, 320, 5
HALVES = PlainHalvesGemm(F16, k=K, n=N, m=M)


@dataclass(frozen=True)
class Bench:
    """A session whose launches are seen, and activations in it."""

    session: Session
    x: GpuBuffer
    seen: list[str]

    def projection(self, kernel: KernelType) -> Projection:
        format, n, k = kernel.format, kernel.n, kernel.k  # type: ignore[attr-defined]
        rows = format.random_blocks(np.random.default_rng(n), n, k)
        buffer = GpuBuffer.from_numpy(self.session.device, rows)
        return Projection(LoadedWeight(kernel.name, buffer, format, n, k), kernel, "test")

    def product(self, kernel: KernelType) -> NDArray[np.float32]:
        projection = self.projection(kernel)
        y = GpuBuffer.zeros(self.session.device, self.x.dtype, (M, projection.weight.n))
        with self.session.launches() as launch:
            perform(launch, [project(kernel.name, projection, StepValue.of(self.x), StepValue.of(y))])
        return y.to_numpy()

    def expected(self, kernel: KernelType) -> NDArray[np.float64]:
        weight = self.projection(kernel).weight
        made: NDArray[np.float64] = self.x.to_numpy().astype("f8") @ weight.format.dequantize(weight.buffer.to_numpy()).T
        return made


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        device = stack.enter_context(EmulatedDevice())
        modules = Modules(device)
        stack.callback(modules.close)
        launcher = Launcher(device, modules)
        seen: list[str] = []

        def see(record: LaunchRecord) -> None:
            seen.append(f"{record.place.operation}: {record.kernel.name}")

        launcher.observers.append(see)
        x = np.random.default_rng(1).standard_normal((M, K)).astype(np.float32)
        yield Bench(Session(launcher, modules, GpuProfile()), GpuBuffer.from_numpy(device, x), seen)


def test_each_form_is_made_once_for_all_its_readers(bench: Bench) -> None:
    digits, plain = MmaGemm(Q8_0, k=K, n=N, m=M, digits=3, warps=1), MwvGemv(F16, k=K, n=N, m=M, resident_threads=FOR_SEVERAL)
    for kernel in (HALVES, digits, plain, HALVES, digits):
        made, expected = bench.product(kernel), bench.expected(kernel)
        assert np.abs(made - expected).max() <= 1e-5 * expected.std(), kernel.name
    assert bench.seen == [
        "plain_halves_f16_gemm input as halves: pack_halves",
        "plain_halves_f16_gemm: plain_halves_f16_gemm",
        "mma_q8_0_gemm input as digits: q24_quantize",
        "mma_q8_0_gemm: mma_q8_0_gemm",
        "batched_f16_gemv: batched_f16_gemv",
        "plain_halves_f16_gemm: plain_halves_f16_gemm",
        "mma_q8_0_gemm: mma_q8_0_gemm",
    ]


def test_an_f16_split_of_another_form_or_of_new_activations_is_made_anew(bench: Bench) -> None:
    one_part = PlainHalvesGemm(F16, k=K, n=N, m=M, parts=1)
    for kernel in (HALVES, one_part, HALVES):
        bench.product(kernel)
    bench.x.upload(-2.0 * bench.x.to_numpy())
    made, expected = bench.product(HALVES), bench.expected(HALVES)
    assert np.abs(made - expected).max() <= 1e-5 * expected.std()
    packs = [name for name in bench.seen if name.endswith("pack_halves")]
    assert len(packs) == 3


def test_a_product_on_an_f16_split_is_added_to_the_stream(bench: Bench) -> None:
    device = bench.session.device
    before = np.random.default_rng(5).standard_normal((M, N)).astype(np.float32)
    stream, product = GpuBuffer.from_numpy(device, before), GpuBuffer.zeros(device, bench.x.dtype, (M, N))
    x, delta, old, new = (StepValue.of(one) for one in (bench.x, product, stream, stream))
    with bench.session.launches() as launch:
        onto = project("attn_output", bench.projection(HALVES), x, delta)
        perform(launch, [onto, Add(name="attn_output_residual", x=old, delta=delta, y=new)])
    assert np.array_equal(stream.to_numpy(), before + product.to_numpy())


def test_swiglu_and_norm_write_the_f16_split_of_their_readers(bench: Bench) -> None:
    device, x, seen = bench.session.device, bench.x, bench.seen
    wide = PlainHalvesGemm(F16, k=K, n=K, m=M)
    gate, up, down = (bench.projection(kernel) for kernel in (wide, wide, HALVES))
    buffers = FfnBuffers(*(GpuBuffer.zeros(device, x.dtype, (M, K)) for _ in range(3)))
    y, gamma = GpuBuffer.zeros(device, x.dtype, (M, N)), GpuBuffer.from_numpy(device, np.ones(K, np.float32))
    for fused in (True, False):
        with bench.session.launches() as launch:
            launch.fused = fused
            normed = StepValue.of(bench.session.workspace.buffer("normed", (M, K)))
            norm = Norm(name="ffn_norm", x=StepValue.of(x), y=normed, gamma=gamma, eps=1e-5)
            perform(launch, [norm, *feed_forward(FeedForward(up, down, gate), buffers, x=normed, y=StepValue.of(y))])
        if fused:
            expected = y.to_numpy()
            assert [name.partition(": ")[2] for name in seen] == [
                "batched_rmsnorm_halves", wide.name, wide.name, "batched_fused_swiglu_halves", HALVES.name,
            ]  # fmt: skip
    assert np.array_equal(y.to_numpy(), expected)
    assert sum(name.endswith("pack_halves") for name in seen) == 2


def test_readers_share_the_form_of_the_first_that_has_one(bench: Bench) -> None:
    plain = bench.projection(MwvGemv(F16, k=K, n=N, m=M, resident_threads=FOR_SEVERAL))
    halves, digits = bench.projection(HALVES), bench.projection(MmaGemm(Q8_0, k=K, n=N, m=M, digits=3, warps=1))

    def left(*readers: Projection) -> object:
        x, y = StepValue.of(bench.x), StepValue.of(bench.x)
        products = [project(str(number), one, y, StepValue.of(bench.x)) for number, one in enumerate(readers)]
        norm = Norm(name="norm", x=x, y=y, gamma=bench.x, eps=1e-5)
        return next(leave_forms(StepGraph([norm, *products]), Setting(bench.session.device)).each(Norm)).leaves

    assert left(plain, halves, digits) == HalfForm(2, 4)
    assert left(digits, halves) == 3
    assert left(plain) is None


def test_a_kernel_on_an_f16_split_is_fit_for_its_rows() -> None:
    require_fit(HALVES, F16, "a weight", n=N, k=K, rows=M)


def test_a_layer_with_a_matrix_of_another_format_leaves_the_scratch_of_the_others_alone(bench: Bench) -> None:
    x = np.random.default_rng(2).standard_normal((M, 512)).astype(np.float32)
    activations = GpuBuffer.from_numpy(bench.session.device, x)
    results = []
    with bench.session.launches() as launch:  # which prepares all before the first of them runs
        for format, n in (("Q4_K", 16), ("Q5_K", 80)):
            projection = bench.projection(StationaryGemm(FORMATS[format], k=512, n=n, m=M, slices=2, resident_threads=256))
            y = GpuBuffer.zeros(bench.session.device, activations.dtype, (M, n))
            perform(launch, [project("ffn_down", projection, StepValue.of(activations), StepValue.of(y))])
            results.append((projection.weight, y))
    for weight, y in results:
        exact = x.astype("f8") @ weight.format.dequantize(weight.buffer.to_numpy()).T
        assert np.abs(y.to_numpy() - exact).max() <= 1e-5 * exact.std()
