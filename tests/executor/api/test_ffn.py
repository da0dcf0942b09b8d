"""The feed-forward networks of CudaExecutor against float64, and that each is one definition run in other ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuProfile
from executor.base.errors import LaunchError, ModelError
from executor.device.emulated import EmulatedDevice
from executor.launch.launch import LaunchRecord
from ptxgen.dsl.arguments import Array
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS

pytestmark = pytest.mark.usefixtures("shared_kernels")

HIDDEN, FF = 256, 512
TYPES = {"gate": "Q4_K", "up": "Q5_0", "down": "Q6_K"}
SWIGLU = ("gate", "up", "down", HIDDEN, FF)


@pytest.fixture(scope="module")
def shared() -> Iterator[CudaExecutor]:
    with CudaExecutor("emulator", profile=GpuProfile()) as made:
        for seed, (name, type) in enumerate(TYPES.items()):
            shape = (HIDDEN, FF) if name == "down" else (FF, HIDDEN)
            made.load_weight(name, FORMATS[type].random_blocks(np.random.default_rng(seed), *shape), type, shape)
        yield made


@pytest.fixture
def executor(shared: CudaExecutor) -> Iterator[CudaExecutor]:
    yield shared
    shared.profile = GpuProfile()
    shared.launcher.observers.clear()


@pytest.fixture
def x() -> NDArray[np.float32]:
    return np.random.default_rng(9).standard_normal(HIDDEN).astype(np.float32)


def matrix(executor: CudaExecutor, name: str) -> NDArray[np.float64]:
    return FORMATS[TYPES[name]].dequantize(executor.weights[name].buffer.to_numpy()).astype("f8")


def swiglu(executor: CudaExecutor, x: NDArray[np.float32]) -> NDArray[np.float64]:
    gate, up = (matrix(executor, name) @ x.astype("f8") for name in ("gate", "up"))
    made: NDArray[np.float64] = matrix(executor, "down") @ (gate / (1 + np.exp(-gate)) * up)
    return made


def assert_close(made: NDArray[np.float32], exact: NDArray[np.float64]) -> None:
    """Two products, each right to 1e-5 (the accurate precision), of numbers that the activation at most doubles: 4e-5 of the
    root mean square; the worst of 256 lies within 4 of that."""
    assert np.abs(made - exact).max() <= 16e-5 * np.sqrt(np.mean(exact**2))


def test_gelu_ffn_on_host_arrays_is_right(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    up = matrix(executor, "up") @ x.astype("f8")
    activated = up / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    output = np.full(HIDDEN, np.nan, np.float32)
    assert executor.fused_ffn_q4k(x, output, "up", "down", HIDDEN, FF) is output
    assert_close(output, matrix(executor, "down") @ activated)


def test_swiglu_ffn_is_right(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    assert_close(executor.fused_ffn_swiglu_host(x, None, *SWIGLU), swiglu(executor, x))


def test_all_forms_give_the_same_bits(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    expected = executor.fused_ffn_swiglu_host(x, None, *SWIGLU)
    pointers = [executor.get_quantized_weight_ptr(name) for name in TYPES]
    for made in (
        executor.fused_ffn_swiglu_gpu(executor.buffer(x), *SWIGLU),
        executor.fused_ffn_swiglu_indexed_gpu(x, pointers[0], pointers[1], pointers[2], HIDDEN, FF),
        executor.fused_ffn_swiglu_gpu_true_dp4a(x, *SWIGLU, digits=3),  # what the accurate precision uses anyway
    ):
        np.testing.assert_array_equal(made.to_numpy().view(np.uint32), expected.view(np.uint32))


def test_sizes_that_the_weights_know_may_be_left_out(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    expected = executor.fused_ffn_swiglu_host(x, None, *SWIGLU)
    pointers = [executor.get_quantized_weight_ptr(name) for name in TYPES]
    for made in (
        executor.fused_ffn_swiglu_host(x, None, *SWIGLU[:3]),
        executor.fused_ffn_swiglu_gpu(x, *SWIGLU[:3]).to_numpy(),
        executor.fused_ffn_swiglu_gpu(x, *SWIGLU[:3], intermediate_dim=FF).to_numpy(),
        executor.fused_ffn_swiglu_indexed_gpu(x, pointers[0], pointers[1], pointers[2]).to_numpy(),
        executor.fused_ffn_swiglu_gpu_true_dp4a(x, *SWIGLU[:3], digits=3).to_numpy(),
    ):
        np.testing.assert_array_equal(made.view(np.uint32), expected.view(np.uint32))
    gelu = executor.fused_ffn_q4k(x, None, "up", "down")
    np.testing.assert_array_equal(gelu, executor.fused_ffn_q4k(x, None, "up", "down", HIDDEN, FF))


def test_true_dp4a_is_on_planes_whatever_the_profile(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    records: list[LaunchRecord] = []
    executor.profile = GpuProfile(gemv={format.id: f"mwv_{format.id}_gemv" for format in FORMATS.values()})
    executor.launcher.observers.append(records.append)
    made = executor.fused_ffn_swiglu_gpu_true_dp4a(x, *SWIGLU, digits=1).to_numpy()
    kernels = [record.kernel for record in records]
    assert [kernel.name for kernel in kernels if kernel.family == "gemv"] == [
        "hw_dp4a_q4k_gemv",
        "hw_dp4a_q5_0_gemv",
        "hw_dp4a_q6k_gemv",
    ]
    makers = [kernel for kernel in kernels if isinstance(a := kernel.signature().get("digits"), Array) and a.direction == "out"]
    assert len(makers) == 2  # gate and up share one
    error = np.sqrt(np.mean((made - swiglu(executor, x)) ** 2) / np.mean(swiglu(executor, x) ** 2))
    assert 1e-4 < error < 3e-2  # one digit: half a step of 1/127 of a block's peak in each of three products


def test_true_dp4a_refuses_weights_without_codes(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    executor.load_weight("plain", np.zeros((FF, HIDDEN), np.float32), "F32", (FF, HIDDEN))
    with pytest.raises(ArgumentError, match="plain is F32, which has no packed codes"):
        executor.fused_ffn_swiglu_gpu_true_dp4a(x, "plain", "up", "down", HIDDEN, FF)


def test_a_host_form_is_one_round_trip(executor: CudaExecutor, x: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch) -> None:
    executor.fused_ffn_swiglu_host(x, None, *SWIGLU)  # buffers and kernels are there now
    done: list[str] = []
    for name in ("upload", "download", "alloc", "synchronize"):
        whole = getattr(EmulatedDevice, name)

        def counted(self: Any, *arguments: Any, _whole: Any = whole, _name: str = name) -> Any:
            done.append(_name)
            return _whole(self, *arguments)

        monkeypatch.setattr(EmulatedDevice, name, counted)
    executor.fused_ffn_swiglu_host(x, None, *SWIGLU)
    executor.fused_ffn_q4k(x, None, "up", "down", HIDDEN, FF)
    assert done == ["upload", "download"] * 2


def test_wrong_weights_and_sizes_are_refused_before_anything_runs(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    records: list[LaunchRecord] = []
    executor.launcher.observers.append(records.append)
    with pytest.raises(ModelError, match="down is 256 x 512; the call says 512 x 256"):
        executor.fused_ffn_swiglu_gpu(x, "gate", "down", "down", HIDDEN, FF)
    for call in (
        lambda: executor.fused_ffn_swiglu_gpu(x, "gate", "down", "down"),
        lambda: executor.fused_ffn_q4k(x, None, "down", "down"),
    ):
        with pytest.raises(ModelError, match="down is 256 x 512; with down of 256 x 512 it must be 512 x 256"):
            call()
    with pytest.raises(ModelError, match=r"gate is 512 x 256; the call says k = 512"):
        executor.fused_ffn_swiglu_gpu(x, *SWIGLU[:3], hidden_dim=FF)
    with pytest.raises(ModelError, match="no weight is called upp; near: up"):
        executor.fused_ffn_q4k(x, None, "upp", "down", HIDDEN, FF)
    with pytest.raises(ArgumentError, match=r"input is float32\[255\] on the host; must be \[256\]"):
        executor.fused_ffn_q4k(x[1:], None, "up", "down", HIDDEN, FF)
    with pytest.raises(LaunchError, match="null pointer"):
        executor.fused_ffn_swiglu_indexed_gpu(x, 0, "up", "down", HIDDEN, FF)
    unknown = executor.buffer(np.zeros(FF * HIDDEN, np.uint8))
    with pytest.raises(LaunchError, match="is not the start of a loaded weight, so its type is not known"):
        executor.fused_ffn_swiglu_indexed_gpu(x, unknown.pointer, "up", "down", HIDDEN, FF)
    assert records == []


def test_nothing_stays_allocated_when_a_call_fails(executor: CudaExecutor, x: NDArray[np.float32]) -> None:
    executor.fused_ffn_swiglu_gpu(x, *SWIGLU).free()
    before = executor.device.memory().allocated

    def fail(record: LaunchRecord) -> None:
        raise RuntimeError("observer")

    executor.launcher.observers.append(fail)
    with pytest.raises(RuntimeError, match="observer"):
        executor.fused_ffn_swiglu_gpu(x, *SWIGLU)
    assert executor.device.memory().allocated == before
