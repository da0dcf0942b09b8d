"""`matmul` takes type and sizes from the weight and rows from the input, has the bits of the calls that are told all of it, and
names both shapes where they do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuProfile
from executor.base.errors import LaunchError, ModelError
from executor.launch.launch import LaunchRecord
from executor.memory.weights import LoadedWeight
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.formats import FORMATS

pytestmark = pytest.mark.usefixtures("shared_kernels")

N, K = 128, 256
TYPES = ("Q4_K", "Q6_K", "F16")


@pytest.fixture(scope="module")
def shared() -> Iterator[CudaExecutor]:
    with CudaExecutor("emulator", profile=GpuProfile()) as made:
        for type in TYPES:
            made.load_weight(type, FORMATS[type].random_blocks(np.random.default_rng(3), N, K), type, (N, K))
        yield made


@pytest.fixture
def executor(shared: CudaExecutor) -> Iterator[CudaExecutor]:
    shared.profile = GpuProfile()
    yield shared
    shared.launcher.observers.clear()


@pytest.fixture
def weight(executor: CudaExecutor) -> LoadedWeight:
    return executor.weights["Q4_K"]


def values(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("type", TYPES)
def test_a_vector_has_the_bits_of_gemv_dispatch(executor: CudaExecutor, type: str) -> None:
    x, y = executor.buffer(values(K)), executor.zeros(N)
    executor.gemv_dispatch(type, type, x, y, N, K)
    made = executor.matmul(type, x)
    assert (made.shape, str(made.dtype)) == ((N,), "f32")
    np.testing.assert_array_equal(made.to_numpy(), y.to_numpy())


@pytest.mark.parametrize("m", [1, 3, 9])
def test_rows_have_the_bits_of_batched_gemv_or_gemm(executor: CudaExecutor, m: int) -> None:
    x, y = executor.buffer(values(m, K)), executor.zeros(m, N)
    executor.batched_gemv_or_gemm("Q4_K", "Q4_K", x, y, m, N, K)
    made = executor.matmul("Q4_K", x)
    assert made.shape == (m, N)
    np.testing.assert_array_equal(made.to_numpy(), y.to_numpy())


def test_the_product_is_that_of_the_weight(executor: CudaExecutor, weight: LoadedWeight) -> None:
    x = values(3, K)
    exact = x.astype("f8") @ weight.format.dequantize(weight.buffer.to_numpy()).astype("f8").T
    error = np.linalg.norm(executor.matmul(weight, x).to_numpy() - exact) / np.linalg.norm(exact)
    assert error < 1e-5


def test_a_weight_is_a_name_an_object_its_buffer_or_its_address(executor: CudaExecutor, weight: LoadedWeight) -> None:
    x = executor.buffer(values(K))
    expected = executor.matmul("Q4_K", x).to_numpy()
    for given in (weight, weight.buffer, weight.buffer.pointer):
        np.testing.assert_array_equal(executor.matmul(given, x).to_numpy(), expected)


def test_an_array_of_numpy_is_copied_whatever_its_order(executor: CudaExecutor) -> None:
    x = values(3, K)
    made = executor.matmul("Q4_K", np.asfortranarray(x))
    np.testing.assert_array_equal(made.to_numpy(), executor.matmul("Q4_K", executor.buffer(x)).to_numpy())
    taken = executor.device.memory().allocated
    x[:] = 0  # the copy was taken
    del made
    assert executor.device.memory().allocated == taken - 3 * N * 4


def test_out_gets_the_product_and_is_returned(executor: CudaExecutor) -> None:
    for shape in ((), (3,)):
        x, out = executor.buffer(values(*shape, K)), executor.zeros((*shape, N))
        assert executor.matmul("Q4_K", x, out=out) is out
        np.testing.assert_array_equal(out.to_numpy(), executor.matmul("Q4_K", x).to_numpy())


def test_out_may_be_anothers_memory(executor: CudaExecutor) -> None:
    theirs = np.zeros(N, np.float32)
    made = executor.matmul("Q4_K", values(K), theirs)
    assert made.pointer == theirs.ctypes.data
    np.testing.assert_array_equal(theirs, executor.matmul("Q4_K", values(K)).to_numpy())


def test_a_capture_keeps_the_buffers_that_nobody_else_has(executor: CudaExecutor) -> None:
    executor.load_weight("square", FORMATS["F16"].random_blocks(np.random.default_rng(5), K, K), "F16", (K, K))
    x = executor.buffer(values(K))
    expected = executor.matmul("Q4_K", executor.matmul("square", x)).to_numpy()
    with executor.capture() as graph:
        made = executor.matmul("Q4_K", executor.matmul("square", x))
    junk = [executor.buffer(np.full(size, 9, np.float32)) for size in (K, N) for _ in range(20)]
    graph.replay()
    np.testing.assert_array_equal(made.to_numpy(), expected)
    assert all((one.to_numpy() == 9).all() for one in junk)


def test_a_capture_takes_no_array_of_numpy(executor: CudaExecutor) -> None:
    words = "x is an array of NumPy, which is copied to the device, which cannot be captured"
    with pytest.raises(LaunchError, match=words), executor.capture():
        executor.matmul("Q4_K", values(K))


def test_the_profile_chooses_the_kernel(executor: CudaExecutor) -> None:
    executor.profile = GpuProfile(gemv={"q4k": "mwv_q4k_gemv"})
    records: list[LaunchRecord] = []
    executor.launcher.observers.append(records.append)
    executor.matmul("Q4_K", values(K))
    assert [record.kernel.name for record in records] == ["mwv_q4k_gemv"]


def test_a_kernel_without_a_form_for_rows_is_no_silent_loop(executor: CudaExecutor) -> None:
    executor.profile = GpuProfile(gemv={"q4k": "dp4a_q4k_gemv"})
    with pytest.raises(ArgumentError, match=r"dp4a_q4k_gemv.* has no form for 2 rows"):
        executor.matmul("Q4_K", values(2, K))


X = r"Q4_K is 128 x 256, so it must be f32\[256\] or f32\[m, 256\]"


class TestWhatIsRefused:
    """None of it reaches a launch or leaves memory behind."""

    @pytest.fixture(autouse=True)
    def watched(self, executor: CudaExecutor) -> Iterator[None]:
        records: list[LaunchRecord] = []
        executor.launcher.observers.append(records.append)
        before = executor.device.memory().allocated
        yield
        assert records == []
        assert executor.device.memory().allocated == before

    @pytest.mark.parametrize("shape", [(100,), (3, 100), (K, 3), (3 * K,), (1, 3, K), ()], ids=str)
    def test_another_shape_names_both(self, executor: CudaExecutor, shape: tuple[int, ...]) -> None:
        words = rf"x is (f32|float32)\[{', '.join(map(str, shape))}\]; {X}"
        for x in (executor.zeros(shape), np.zeros(shape, np.float32)):
            with pytest.raises(ArgumentError, match=words):
                executor.matmul("Q4_K", x)

    def test_no_rows(self, executor: CudaExecutor) -> None:
        with pytest.raises(ArgumentError, match=rf"x is float32\[0, 256\]; {X}"):
            executor.matmul("Q4_K", np.zeros((0, K), np.float32))

    def test_another_type(self, executor: CudaExecutor) -> None:
        with pytest.raises(ArgumentError, match=rf"x is float64\[256\]; {X}"):
            executor.matmul("Q4_K", np.zeros(K))
        with pytest.raises(ArgumentError, match=rf"x is f16\[256\]; {X}"):
            executor.matmul("Q4_K", executor.zeros(K, dtype="half"))

    @pytest.mark.parametrize("x", [[1.0] * K, None, "x", 3])
    def test_what_is_no_array(self, executor: CudaExecutor, x: Any) -> None:
        with pytest.raises(ArgumentError, match=r"x is .*; allowed: a GpuBuffer, or an array of NumPy or another library"):
            executor.matmul("Q4_K", x)

    @pytest.mark.parametrize("shape", [(N + 1,), (1, N), (N, 1), (2, N)], ids=str)
    def test_another_shape_of_out_names_all_three(self, executor: CudaExecutor, shape: tuple[int, ...]) -> None:
        words = (
            rf"out is f32\[{', '.join(map(str, shape))}\]; Q4_K is 128 x 256 and x is float32\[256\], so it must be f32\[128\]"
        )
        with pytest.raises(ArgumentError, match=words):
            executor.matmul("Q4_K", values(K), out=executor.zeros(shape))

    def test_out_in_the_memory_of_x(self, executor: CudaExecutor) -> None:
        x = executor.zeros(K)
        with pytest.raises(PtxGenError, match="overlap"):
            executor.matmul("Q4_K", x, out=x.view(0, (N,)))

    def test_what_was_freed(self, executor: CudaExecutor) -> None:
        x, out = executor.zeros(K), executor.zeros(N)
        x.free()
        out.free()
        with pytest.raises(LaunchError, match=r"x .* was freed"):
            executor.matmul("Q4_K", x)
        with pytest.raises(LaunchError, match=r"out .* was freed"):
            executor.matmul("Q4_K", values(K), out=out)

    def test_memory_of_unknown_type(self, executor: CudaExecutor, weight: LoadedWeight) -> None:
        copy = executor.buffer(weight.buffer.to_numpy())
        for given in (copy, copy.pointer):
            with pytest.raises(LaunchError, match="is not the start of a loaded weight, so its type is not known"):
                executor.matmul(given, values(K))

    def test_a_name_that_is_not_there(self, executor: CudaExecutor) -> None:
        with pytest.raises(ModelError, match="no weight is called Q4K; near: Q4_K"):
            executor.matmul("Q4K", values(K))
