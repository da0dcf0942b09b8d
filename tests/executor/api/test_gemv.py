"""The GEMVs of CudaExecutor: every entry point against float64, and what they refuse before anything is launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuBuffer, GpuProfile
from executor.base.errors import LaunchError, ModelError, NumericalFault
from executor.launch.launch import LaunchRecord
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.formats import FORMATS
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.gemv import tiled

pytestmark = pytest.mark.usefixtures("shared_kernels")

N, K = 6, 512
Q4K_STRATEGIES = {
    "q4k_gemv_into": "hw_dp4a_q4k_gemv",
    "q4k_gemv_into_legacy": "tiled_q4k_gemv",
    "coalesced_q4k_gemv_into": "coalesced_q4k_gemv",
    "wide_q4k_gemv_into": "wide_q4k_gemv",
    "vectorized_q4k_gemv_into": "vectorized_q4k_gemv",
    "mwv_q4k_gemv_into": "mwv_q4k_gemv",
    "mwv_dp4a_q4k_gemv_into": "mwv_dp4a_q4k_gemv",
    "hw_dp4a_q4k_gemv_into": "hw_dp4a_q4k_gemv",
}
Q6K_STRATEGIES = {
    "q6k_gemv_into": "hw_dp4a_q6k_gemv",
    "dp4a_q6k_gemv_into": "dp4a_q6k_gemv",
    "hw_dp4a_q6k_gemv_into": "hw_dp4a_q6k_gemv",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[CudaExecutor]:
    """One for all tests, so that a kernel is compiled once."""
    with CudaExecutor("emulator", profile=GpuProfile()) as made:
        yield made


@pytest.fixture
def executor(shared: CudaExecutor) -> Iterator[CudaExecutor]:
    shared.profile = GpuProfile()
    yield shared
    shared.launcher.observers.clear()


def blocks(type: str, n: int = N, k: int = K, seed: int = 3) -> NDArray[np.uint8]:
    return FORMATS[type].random_blocks(np.random.default_rng(seed), n, k)


def activations(k: int = K, rows: tuple[int, ...] = ()) -> NDArray[np.float32]:
    x = np.random.default_rng(4).standard_normal((*rows, k)).astype(np.float32)
    x[..., k // 3] = OUTLIER
    return x


def product(type: str, raw: NDArray[np.uint8], x: NDArray[np.float32]) -> NDArray[np.float64]:
    made: NDArray[np.float64] = x.astype("f8") @ FORMATS[type].dequantize(raw).astype("f8").T
    return made


def bound(type: str, raw: NDArray[np.uint8], x: NDArray[np.float32]) -> Any:
    """4e-5 of the root of the sum of squares of the products. The accurate precision promises a root mean square error of 1e-5
    of the result's, which has that size for random signs; a single error stays within 4 of them."""
    weights = FORMATS[type].dequantize(raw).astype("f8")
    return 4e-5 * np.sqrt((x.astype("f8") ** 2) @ (weights**2).T)


def seen(executor: CudaExecutor) -> list[LaunchRecord]:
    records: list[LaunchRecord] = []
    executor.launcher.observers.append(records.append)
    return records


@pytest.mark.parametrize(("type", "method"), [("Q4_K", m) for m in Q4K_STRATEGIES] + [("Q6_K", m) for m in Q6K_STRATEGIES])
def test_a_named_gemv_runs_its_kernel_and_is_right(type: str, method: str, executor: CudaExecutor) -> None:
    raw, x = blocks(type), activations()
    weight, y = executor.load_weight("w", raw, type, (N, K)), executor.zeros(N)
    records = seen(executor)
    getattr(executor, method)(weight, executor.buffer(x), y, N, K)
    assert records[-1].kernel.name == (Q4K_STRATEGIES | Q6K_STRATEGIES)[method]
    assert (np.abs(y.to_numpy() - product(type, raw, x)) <= bound(type, raw, x)).all()


@pytest.mark.parametrize("type", FORMATS)
def test_dispatch_knows_every_type(type: str, executor: CudaExecutor) -> None:
    raw, x, y = blocks(type, 3, 256), activations(256), executor.zeros(3)
    executor.load_weight("w", raw, type, (3, 256))
    executor.gemv_dispatch(type, "w", executor.buffer(x), y, 3, 256)
    assert (np.abs(y.to_numpy() - product(type, raw, x)) <= bound(type, raw, x)).all()


def test_an_unknown_type_names_itself_and_what_is_known(executor: CudaExecutor) -> None:
    with pytest.raises(ArgumentError, match=r"'Q8_K'.*known formats: F32, F16.*MXFP4"):
        executor.gemv_dispatch("Q8_K", "w", executor.zeros(K), executor.zeros(N), N, K)
    with pytest.raises(ArgumentError, match=r"GGML type 15 has no format here; known types: F32 \(0\)"):
        executor.gemv_dispatch(15, "w", executor.zeros(K), executor.zeros(N), N, K)


def test_legacy_takes_chunks_where_the_input_does_not_fit_shared_memory(executor: CudaExecutor) -> None:
    k, n = 18944, 3  # Qwen2.5 7B's ffn_down; n is no multiple of the 4 rows of a block
    assert k > tiled.LARGEST
    raw, x = blocks("Q4_K", n, k), activations(k)
    executor.load_weight("down", raw, "Q4_K", (n, k))
    y, records = executor.zeros(n), seen(executor)
    executor.q4k_gemv_into_legacy("down", executor.buffer(x), y, n, k)
    assert records[-1].kernel.name == "chunked_tiled_q4k_gemv"
    assert (np.abs(y.to_numpy() - product("Q4_K", raw, x)) <= bound("Q4_K", raw, x)).all()


@pytest.mark.parametrize("k", [100, 0, -256])
def test_rows_that_are_no_whole_super_blocks_are_refused(k: int, executor: CudaExecutor) -> None:
    pointer = executor.buffer(np.zeros(4096, np.uint8)).pointer
    with pytest.raises(PtxGenError, match=r"multiple of 256"):
        executor.q4k_gemv_into_legacy(pointer, executor.zeros(100), executor.zeros(2), 2, k)


def test_new_buffers_hold_what_the_given_ones_get(executor: CudaExecutor) -> None:
    four, six = (
        executor.load_weight("four", blocks("Q4_K"), "Q4_K", (N, K)),
        executor.load_weight("six", blocks("Q6_K"), "Q6_K", (N, K)),
    )
    x, y = executor.buffer(activations()), executor.zeros(N)
    executor.q4k_gemv_into(four, x, y, N, K)
    by_name = executor.q4k_gemv_cached_async("four", x, N, K)
    by_address = executor.q4k_gemv_indexed_async(executor.get_quantized_weight_ptr("four"), x, N, K)
    for made in (by_name, by_address):
        np.testing.assert_array_equal(made.to_numpy(), y.to_numpy())
    executor.q6k_gemv_into(six, x, y, N, K)
    np.testing.assert_array_equal(executor.q6k_gemv_indexed_async(six.buffer.pointer, x, N, K).to_numpy(), y.to_numpy())


def test_memory_that_is_no_loaded_weight_is_taken_by_address_and_as_a_buffer(executor: CudaExecutor) -> None:
    raw, x = blocks("Q4_K"), executor.buffer(activations())
    memory, y = executor.buffer(raw), executor.zeros(N)
    executor.q4k_gemv_into(executor.load_weight("w", raw, "Q4_K", (N, K)), x, y, N, K)
    for weight in (memory, memory.pointer):
        np.testing.assert_array_equal(executor.q4k_gemv_indexed_async(weight, x, N, K).to_numpy(), y.to_numpy())
    second_row = memory.pointer + raw.shape[1]
    np.testing.assert_array_equal(executor.q4k_gemv_indexed_async(second_row, x, N - 1, K).to_numpy(), y.to_numpy()[1:])


def test_a_numpy_array_is_read_and_written_in_place_on_the_emulator(executor: CudaExecutor) -> None:
    raw, x, y = blocks("Q4_K"), activations(), np.zeros(N, np.float32)
    executor.load_weight("w", raw, "Q4_K", (N, K))
    executor.mwv_q4k_gemv_into("w", x, y, N, K)
    assert (np.abs(y - product("Q4_K", raw, x)) <= bound("Q4_K", raw, x)).all()
    x[:] = 0
    executor.hw_dp4a_q4k_gemv_into("w", x, y, N, K)
    np.testing.assert_array_equal(y, np.zeros(N))


def test_planes_can_be_asked_for(executor: CudaExecutor) -> None:
    executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
    x, made = executor.buffer(activations()), {}
    for digits in (1, 2, 3):
        y = executor.zeros(N)
        executor.hw_dp4a_q4k_gemv_into("w", x, y, N, K, digits=digits)
        made[digits] = np.abs(y.to_numpy() - product("Q4_K", blocks("Q4_K"), activations())).max()
    assert made[1] > 20 * made[2] > 20 * made[3]
    executor.profile = GpuProfile("fast")
    records = seen(executor)
    executor.hw_dp4a_q4k_gemv_into("w", x, executor.zeros(N), N, K)
    assert records[-1].kernel.parameters()["digits"] == 1


def test_the_debug_mode_watches_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_DEBUG", "1")
    weights = np.zeros((2, 32), np.float32)
    weights[1, 5] = np.nan
    with CudaExecutor("emulator") as executor:
        executor.load_weight("w", weights, "F32", weights.shape)
        with pytest.raises(NumericalFault, match="gemv"):
            executor.gemv_dispatch("F32", "w", executor.zeros(32), executor.zeros(2), 2, 32)
    monkeypatch.setenv("GPU_DEBUG", "0")
    with CudaExecutor("emulator") as executor:
        assert executor.launcher.observers == []


@pytest.mark.parametrize(("type", "method"), [("Q4_K", m) for m in Q4K_STRATEGIES] + [("Q6_K", m) for m in Q6K_STRATEGIES])
def test_sizes_that_the_weight_knows_may_be_left_out(type: str, method: str, executor: CudaExecutor) -> None:
    weight, x, made = executor.load_weight("w", blocks(type), type, (N, K)), executor.buffer(activations()), []
    sizes: tuple[dict[str, int], ...] = ({"n": N, "k": K}, {}, {"n": N}, {"k": K})
    for given in sizes:
        y = executor.zeros(N)
        getattr(executor, method)(weight, x, y, **given)
        made.append(y.to_numpy())
    assert all(np.array_equal(one, made[0]) for one in made)


def test_they_may_be_left_out_where_the_result_is_new(executor: CudaExecutor) -> None:
    four = executor.load_weight("four", blocks("Q4_K"), "Q4_K", (N, K))
    executor.load_weight("six", blocks("Q6_K"), "Q6_K", (N, K))
    x, y = executor.buffer(activations()), executor.zeros(N)
    executor.gemv_dispatch("Q4_K", "four", x, y)
    for made in (
        executor.q4k_gemv_cached_async("four", x),
        executor.q4k_gemv_indexed_async(four.buffer.pointer, x),
        executor.q4k_gemv_indexed_async(four.buffer.pointer, x, k=K),
    ):
        np.testing.assert_array_equal(made.to_numpy(), y.to_numpy())
    np.testing.assert_array_equal(executor.batched_q4k_gemv_cached("four", activations(), None, 1), y.to_numpy()[None])
    executor.gemv_dispatch("Q6_K", "six", x, y)
    made = executor.q6k_gemv_indexed_async(executor.get_quantized_weight_ptr("six"), x)
    np.testing.assert_array_equal(made.to_numpy(), y.to_numpy())


class TestWhatIsRefused:
    """None of it reaches a launch."""

    @pytest.fixture(autouse=True)
    def watched(self, executor: CudaExecutor) -> Iterator[None]:
        records = seen(executor)
        self.executor = executor
        self.x, self.y = executor.zeros(K), executor.zeros(N)
        yield
        assert records == []

    def refused(self, weight: Any, match: str, n: int = N, k: int = K) -> None:
        with pytest.raises((LaunchError, ModelError), match=match):
            self.executor.q4k_gemv_into(weight, self.x, self.y, n, k)

    def test_a_null_pointer(self) -> None:
        self.refused(0, "null pointer")
        with pytest.raises(LaunchError, match="null pointer"):
            self.executor.q6k_gemv_indexed_async(0, self.x, N, K)

    def test_an_address_of_nothing(self) -> None:
        self.refused(0x1000, "0x1000: no live memory of emulator")

    def test_memory_that_was_freed(self) -> None:
        memory = self.executor.buffer(blocks("Q4_K"))
        memory.free()
        self.refused(memory.pointer, "no live memory")
        self.refused(memory, "was freed")

    def test_memory_of_another_device(self) -> None:
        with CudaExecutor("emulator") as other:
            memory = other.buffer(blocks("Q4_K"))
            self.refused(memory.pointer, "no live memory")
            self.refused(memory, "is another executor's, on emulator")

    def test_memory_that_is_too_small(self) -> None:
        memory = self.executor.buffer(blocks("Q4_K", N - 1))
        self.refused(memory.pointer, f"no live memory .* holds {N * 288} bytes there")
        self.refused(memory, rf"has {(N - 1) * 288} bytes; {N} x {K} of Q4_K are {N * 288}")

    def test_the_rest_of_a_weight_that_is_too_small(self) -> None:
        pointer = self.executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K)).buffer.pointer
        self.refused(pointer + 288, rf"has {(N - 1) * 288} bytes")

    def test_a_misaligned_address(self) -> None:
        memory = self.executor.buffer(np.zeros(8192, np.uint8))
        with pytest.raises(LaunchError, match="must be on a 16-byte boundary"):
            self.executor.mwv_q4k_gemv_into(memory.pointer + 2, self.x, self.y, N, K)

    def test_a_weight_of_another_type_though_its_size_is_the_same(self) -> None:
        raw = blocks("Q4_0")
        assert raw.nbytes == blocks("Q4_K").nbytes
        weight = self.executor.load_weight("w", raw, "Q4_0", (N, K))
        for given in ("w", weight, weight.buffer, weight.buffer.pointer):
            self.refused(given, "w is Q4_0; the call says Q4_K")

    def test_a_weight_of_another_shape(self) -> None:
        self.executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
        self.refused("w", f"w is {N} x {K}; the call says {N - 1} x {K}", n=N - 1)

    def test_one_size_that_contradicts_the_weight(self) -> None:
        self.executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
        for size, wrong in (("n", N + 1), ("k", 2 * K), ("k", 0)):
            with pytest.raises(ModelError, match=rf"w is {N} x {K}; the call says {size} = {wrong}$"):
                self.executor.gemv_dispatch("Q4_K", "w", self.x, self.y, **{size: wrong})

    @pytest.mark.parametrize("given", [{}, {"n": N}, {"k": K}], ids=str)
    def test_memory_of_unknown_size(self, given: dict[str, int]) -> None:
        memory = self.executor.buffer(blocks("Q4_K"))
        for weight in (memory, memory.pointer):
            with pytest.raises(
                ArgumentError, match="is not the start of a loaded weight, so its n and k are not known; give both"
            ):
                self.executor.gemv_dispatch("Q4_K", weight, self.x, self.y, **given)

    def test_a_name_that_is_not_there(self) -> None:
        self.executor.load_weight("blk.0.attn_q.weight", blocks("Q4_K"), "Q4_K", (N, K))
        self.refused("blk.0.atn_q.weight", r"no weight is called blk\.0\.atn_q\.weight; near: blk\.0\.attn_q\.weight")

    @pytest.mark.parametrize("which", ["input", "output"])
    def test_a_vector_of_the_wrong_length(self, which: str) -> None:
        self.executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
        vectors: dict[str, GpuBuffer] = {"input": self.x, "output": self.y} | {which: self.executor.zeros(7)}
        with pytest.raises(ArgumentError, match=rf"{which} is f32\[7\]; must be f32\[(512|6)\]"):
            self.executor.hw_dp4a_q4k_gemv_into("w", vectors["input"], vectors["output"], N, K)

    def test_an_input_that_was_freed(self) -> None:
        self.executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
        self.x.free()
        self.refused("w", "input .* was freed")


class TestBatched:
    M = 10

    def test_rows_have_the_bits_of_single_ones(self, executor: CudaExecutor) -> None:
        x, y = activations(rows=(self.M,)), executor.zeros(N)
        executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
        executor.profile = GpuProfile("fast")
        records = seen(executor)
        made = executor.batched_q4k_gemv_cached("w", x, None, self.M, K, N)
        gemvs = [record.kernel for record in records if record.kernel.family == "gemv"]
        assert [(kernel.name, kernel.parameters()["m"]) for kernel in gemvs] == [
            ("batched_hw_dp4a_q4k_gemv", 8),
            ("batched_hw_dp4a_q4k_gemv", 2),
        ]
        for row, alone in zip(made, x, strict=True):
            executor.q4k_gemv_into("w", executor.buffer(alone), y, N, K)
            np.testing.assert_array_equal(row, y.to_numpy())

    def test_results_go_to_the_given_array(self, executor: CudaExecutor) -> None:
        raw, x = blocks("Q4_K"), activations(rows=(2,))
        executor.load_weight("w", raw, "Q4_K", (N, K))
        executor.profile = GpuProfile(gemv={"q4k": "mwv_q4k_gemv"})
        output = np.full((2, N), np.nan, np.float32)
        assert executor.batched_q4k_gemv_cached("w", x, output, 2, K, N) is output
        assert (np.abs(output - product("Q4_K", raw, x)) <= bound("Q4_K", raw, x)).all()

    def test_sizes_are_checked_before_anything_runs(self, executor: CudaExecutor) -> None:
        executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
        records, x = seen(executor), activations(rows=(2,))
        with pytest.raises(ArgumentError, match=r"input is float32\[2, 512\] on the host; must be \[3, 512\]"):
            executor.batched_q4k_gemv_cached("w", x, None, 3, K, N)
        for output in (np.zeros((2, N + 1), np.float32), np.zeros((2, N)), np.zeros((N, 2), np.float32).T):
            with pytest.raises(ArgumentError, match="output must be a writable, row-major NumPy array of float32"):
                executor.batched_q4k_gemv_cached("w", x, output, 2, K, N)  # type: ignore[arg-type]
        with pytest.raises(ModelError, match="the call says"):
            executor.batched_q4k_gemv_cached("w", x, None, 2, K, N + 1)
        assert records == []

    def test_a_kernel_without_a_batched_form_is_no_silent_loop(self, executor: CudaExecutor) -> None:
        executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
        executor.profile = GpuProfile(gemv={"q4k": "dp4a_q4k_gemv"})
        with pytest.raises(
            ArgumentError, match=r"dp4a_q4k_gemv.* has no form for 2 rows; there are .*batched_hw_dp4a_q4k_gemv"
        ):
            executor.batched_q4k_gemv_cached("w", activations(rows=(2,)), None, 2, K, N)
