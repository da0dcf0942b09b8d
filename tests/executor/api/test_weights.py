"""Weights of CudaExecutor: from files into a pool, one by one, replaced, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor import CudaExecutor
from executor.base.errors import LaunchError, ModelError
from executor.gguf.gguf_file import GgufFile
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.types import F32
from tests.synthetic import Q, write_model

N, K = 4, 256
Q_NAME = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", types=Q.Q4_K, layers=1, hidden=256, heads=4, ff=256)


def blocks(type: str, seed: int = 1) -> Any:
    return FORMATS[type].random_blocks(np.random.default_rng(seed), N, K)


def test_names_are_found_in_the_pool_and_among_single_tensors(path: Path, executor: CudaExecutor) -> None:
    weights = executor.load_weights(path)
    single = executor.load_weight("adapter", blocks("Q6_K"), "Q6_K", (N, K))
    assert weights is executor.weights
    assert executor.get_quantized_weight_ptr(Q_NAME) == weights[Q_NAME].buffer.pointer
    assert executor.get_quantized_weight_ptr("adapter") == single.buffer.pointer
    assert single.buffer.to_numpy().tobytes() == blocks("Q6_K").tobytes()
    with pytest.raises(ModelError, match=r"no weight is called blk\.0\.attn_k\.wieght; near: blk\.0\.attn_k\.weight"):
        executor.get_quantized_weight_ptr("blk.0.attn_k.wieght")


def test_only_the_named_tensors_of_an_open_file_are_loaded(path: Path, executor: CudaExecutor) -> None:
    with GgufFile.open(path) as file:
        assert set(executor.load_weights(file, [Q_NAME])) == {Q_NAME}


def test_a_replaced_weight_counts_and_its_memory_goes(executor: CudaExecutor) -> None:
    first = executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
    executor.load_weight("other", blocks("Q4_K"), "Q4_K", (N, K))
    before, allocated = executor.weights.generation, executor.device.memory().allocated
    second = executor.load_weight("w", blocks("Q4_K", 2), "Q4_K", (N, K))
    assert executor.weights.generation == before + 1
    assert executor.device.memory().allocated == allocated
    assert (first.buffer.alive, second.buffer.alive) == (False, True)
    assert executor.weights["w"] is second


def test_a_single_tensor_takes_the_place_of_one_in_the_pool(path: Path, executor: CudaExecutor) -> None:
    executor.load_weights(path)
    n, k = executor.weights[Q_NAME].n, executor.weights[Q_NAME].k
    raw = FORMATS["Q8_0"].random_blocks(np.random.default_rng(3), n, k)
    other = executor.weights["blk.0.attn_k.weight"].buffer.to_numpy()
    executor.load_weight(Q_NAME, raw, "Q8_0", (n, k))
    assert executor.weights[Q_NAME].format.name == "Q8_0"
    assert executor.weights[Q_NAME].buffer.to_numpy().tobytes() == raw.tobytes()
    np.testing.assert_array_equal(executor.weights["blk.0.attn_k.weight"].buffer.to_numpy(), other)


def test_a_freed_weight_is_refused_and_all_memory_comes_back(path: Path, executor: CudaExecutor) -> None:
    executor.load_weights(path)
    executor.load_weight("w", blocks("Q4_K"), "Q4_K", (N, K))
    executor.weights.free()
    assert executor.device.memory().allocated == 0
    with pytest.raises(LaunchError, match="w was freed"):
        executor.q4k_gemv_into("w", np.zeros(K, np.float32), np.zeros(N, np.float32), N, K)


@pytest.mark.parametrize("data", [bytes, bytearray, memoryview, np.asarray])
def test_blocks_are_taken_from_anything_that_holds_bytes(data: Any, executor: CudaExecutor) -> None:
    raw = blocks("Q5_0")
    given = data(raw) if data is np.asarray else data(raw.tobytes())
    assert executor.load_weight("w", given, "Q5_0", (N, K)).buffer.to_numpy().tobytes() == raw.tobytes()


def test_vectors_of_f32_are_numbers_and_matrices_are_rows_of_bytes(executor: CudaExecutor) -> None:
    gamma = np.arange(K, dtype=np.float32)
    vector, matrix = executor.load_weight("v", gamma, "F32", (K,)), executor.load_weight("m", gamma, "F32", (1, K))
    assert (vector.buffer.dtype, vector.buffer.shape) == (F32, (K,))
    assert matrix.buffer.shape == (1, 4 * K)
    np.testing.assert_array_equal(vector.buffer.to_numpy(), gamma)


@pytest.mark.parametrize(
    ("type", "shape", "data", "error", "match"),
    [
        ("Q6_K", (N, K), "Q4_K", ModelError, rf"Q6_K of shape \[4, 256\] has {N * 210} bytes \(4 rows of 210\), got {N * 144}"),
        ("Q4_K", (N + 1, K), "Q4_K", ModelError, "has 720 bytes"),
        ("Q4_K", (N, K // 2), "Q4_K", ModelError, "rows of 128 values cannot be Q4_K, whose blocks have 256"),
        ("Q4_K", (0, K), "Q4_K", ModelError, r"shape \[0, 256\] must be whole numbers of at least 1"),
        ("Q4_K", (), "Q4_K", ModelError, r"shape \[\]"),
        ("Q8_K", (N, K), "Q4_K", ArgumentError, "no format is called 'Q8_K'"),
        (15, (N, K), "Q4_K", ArgumentError, "GGML type 15 has no format here"),
    ],
)
def test_a_size_that_contradicts_the_type_is_an_error(
    type: Any, shape: tuple[int, ...], data: str, error: type[Exception], match: str, executor: CudaExecutor
) -> None:
    with pytest.raises(error, match=match):
        executor.load_weight("w", blocks(data), type, shape)
    assert "w" not in executor.weights
    assert executor.device.memory().allocated == 0


def test_numbers_of_another_type_are_not_taken_for_blocks(executor: CudaExecutor) -> None:
    with pytest.raises(ModelError, match=r"F32 must be bytes or an array of uint8 or float32, got float64"):
        executor.load_weight("w", np.zeros((N, K)), "F32", (N, K))
    with pytest.raises(ModelError, match="Q4_K must be bytes or an array of uint8, got float32"):
        executor.load_weight("w", np.zeros((N, 36), np.float32), "Q4_K", (N, K))  # as many bytes as the blocks


def test_equal_sizes_never_decide_the_type(executor: CudaExecutor) -> None:
    raw = blocks("Q4_0")
    assert raw.nbytes == blocks("Q4_K").nbytes
    for type in ("Q4_0", "Q4_K"):
        assert executor.load_weight("w", raw, type, (N, K)).format.name == type


def test_the_cache_of_kernels_counts_and_loads_before_use(executor: CudaExecutor) -> None:
    from ptxgen.kernels.registry import find

    counts = executor.modules.counts
    executor.modules.preload([find("residual_add").make(n=64)])
    compiled = counts.misses
    assert compiled == 1
    executor.modules.preload([find("residual_add").make(n=64)])
    assert (counts.misses, counts.memory_hits) == (compiled, 1)
