"""The transformer layer of CudaExecutor: five ways, the same bits, right against float64; shared digits, positions, errors."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuProfile
from executor.base.errors import DeviceError, ModelError
from executor.launch.launch import LaunchRecord
from executor.memory.interop import as_buffer
from ptxgen.dsl.arguments import Array
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import OUTLIER, UNIT
from tests.executor.api.five_ways import FiveWays
from tests.executor.api.layer_model import EPS, FF, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, ROOM, inputs, opened, written
from tests.reference_model import ReferenceModel


@pytest.fixture
def executor(layered: CudaExecutor) -> CudaExecutor:
    return layered


def exact(path: Path, given: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    model = ReferenceModel(path)
    x = np.stack(given).astype("f8")
    for layer in range(LAYERS):
        x = model.layer(x, layer)
    return x


def makes_digits(record: LaunchRecord) -> bool:
    """Whether the launch writes activations as int8 planes."""
    digits = record.kernel.signature().get("digits")
    return isinstance(digits, Array) and digits.direction == "out"


@pytest.mark.parametrize("arch", EPS)
def test_five_ways_give_the_same_bits_and_are_right(arch: str, tmp_path: Path, kernels: Path) -> None:
    path, given = written(tmp_path, arch), inputs()
    with opened(path, arch, kernels) as executor:
        made = FiveWays(executor, LAYERS, HIDDEN, FF, EPS[arch]).all(given)
    expected = exact(path, given)
    # The accurate precision: every product is right to 1e-5 of its size; a layer has few in a row, and here they add up to less
    # than the stream they are added to.
    assert np.abs(np.stack(made["by_name"]) - expected).max() <= 1e-4 * expected.std()
    assert len(made) == 5
    for way, rows in made.items():
        for row, first in zip(rows, made["by_name"], strict=True):
            np.testing.assert_array_equal(row.view(np.uint32), first.view(np.uint32), err_msg=way)


def test_all_ways_launch_the_same_kernels(ways: FiveWays) -> None:
    executor, launched = ways.executor, {}
    for run in (ways.by_name, ways.by_index, ways.in_workspace):
        executor.sequence.reset()
        records: list[LaunchRecord] = []
        executor.launcher.observers[:] = [records.append]
        run(inputs(1))
        launched[run.__name__] = [(record.place, record.kernel) for record in records]
    executor.launcher.observers.clear()
    hidden = executor.zeros(HIDDEN)
    with executor.capture() as graph:
        for i, weights in enumerate(ways.indexed):
            executor.transformer_layer_workspace_for_capture(hidden, i, weights, HIDDEN, FF, ways.eps)
    launched["captured"] = [(record.place, record.kernel) for record in graph.records]
    assert {str(place.layer) for place, _ in launched["captured"]} == {"0", "1"}
    for way, kernels in launched.items():
        assert kernels == launched["by_name"], way


def test_a_layer_quantises_each_input_once(ways: FiveWays) -> None:
    records: list[LaunchRecord] = []
    ways.executor.launcher.observers.append(records.append)
    ways.in_workspace(inputs(1))
    for layer in range(LAYERS):
        here = [record for record in records if record.place.layer == layer]
        # after the two norms, attention and the activation, by a launch of their own or with what made the values
        assert sum(makes_digits(record) for record in here) == 4
        readers = [record for record in here if record.kernel.family == "gemv"]
        assert len(readers) == 7
        assert all("digits" in record.arguments for record in readers)


def test_planes_are_made_again_when_the_buffer_was_written(executor: CudaExecutor) -> None:
    weight = "blk.0.attn_q.weight"
    records: list[LaunchRecord] = []
    x, y = executor.buffer(inputs()[0]), executor.zeros(HIDDEN)

    def quantisations() -> int:
        return sum(record.kernel.family == "quantize" for record in records)

    executor.launcher.observers.append(records.append)
    executor.q4k_gemv_into(weight, x, y, HIDDEN, HIDDEN)
    executor.q4k_gemv_into(weight, x, y, HIDDEN, HIDDEN)
    assert quantisations() == 1
    first = y.to_numpy()
    x.upload(inputs()[1])
    executor.q4k_gemv_into(weight, x, y, HIDDEN, HIDDEN)
    assert quantisations() == 2
    assert not np.array_equal(y.to_numpy(), first)
    x.upload(inputs()[0])
    executor.q4k_gemv_into(weight, x, y, HIDDEN, HIDDEN)
    np.testing.assert_array_equal(y.to_numpy(), first)
    x.touch()  # somebody else wrote
    executor.q4k_gemv_into(weight, x, y, HIDDEN, HIDDEN)
    assert quantisations() == 4


def test_planes_are_made_again_when_the_array_was_written_through_another_buffer(executor: CudaExecutor) -> None:
    array, y = np.array(inputs()[0]), executor.zeros(HIDDEN)
    x = as_buffer(executor.device, array)
    executor.q4k_gemv_into("blk.0.attn_q.weight", x, y, HIDDEN, HIDDEN)
    down = "blk.0.ffn_down.weight"
    executor.gemv_dispatch("Q5_0", down, np.ones(FF, np.float32), array, HIDDEN, FF)
    executor.q4k_gemv_into("blk.0.attn_q.weight", x, y, HIDDEN, HIDDEN)
    fresh = executor.zeros(HIDDEN)
    executor.q4k_gemv_into("blk.0.attn_q.weight", executor.buffer(array), fresh, HIDDEN, HIDDEN)
    np.testing.assert_array_equal(y.to_numpy(), fresh.to_numpy())


def test_planes_keep_no_array_of_the_caller_alive(executor: CudaExecutor) -> None:
    array, y = np.array(inputs()[0]), executor.zeros(HIDDEN)
    owner = weakref.ref(array)
    executor.q4k_gemv_into("blk.0.attn_q.weight", array, y, HIDDEN, HIDDEN)
    del array
    gc.collect()
    assert owner() is None


def test_a_new_buffer_at_the_old_address_is_not_taken_for_the_old_one(executor: CudaExecutor) -> None:
    weight, y, made = "blk.0.attn_q.weight", executor.zeros(HIDDEN), []
    for given in inputs():
        x = executor.buffer(given)
        executor.q4k_gemv_into(weight, x, y, HIDDEN, HIDDEN)
        made.append(y.to_numpy())
        x.free()
    assert len({row.tobytes() for row in made}) == 3


def test_two_epsilons_give_two_results(ways: FiveWays) -> None:
    made: dict[float, NDArray[np.float32]] = {}
    for eps in (1e-5, 1.0, 1e-5):
        ways.eps = eps
        ways.executor.sequence.reset()
        row = ways.by_index(inputs(1))[0]
        assert eps not in made or np.array_equal(made[eps], row)
        made[eps] = row
    assert np.abs(made[1e-5] - made[1.0]).max() > 0.1


def test_the_input_of_a_layer_into_a_new_buffer_stays(ways: FiveWays) -> None:
    given = inputs()[0]
    x = ways.executor.buffer(given)
    ways.executor.transformer_layer_indexed(x, 0, ways.indexed[0], HIDDEN, FF, ways.eps).free()
    np.testing.assert_array_equal(x.to_numpy(), given)


def test_a_position_can_be_run_again_and_forgets_what_came_after(ways: FiveWays) -> None:
    given = inputs()
    first = ways.in_workspace(given)
    assert ways.executor.sequence.lengths == [3, 3]
    hidden = ways.executor.buffer(given[1])
    for i, weights in enumerate(ways.indexed):
        ways.executor.transformer_layer_workspace(hidden, i, weights, HIDDEN, FF, ways.eps, 1)
    np.testing.assert_array_equal(hidden.to_numpy(), first[1])
    assert ways.executor.sequence.lengths == [2, 2]


def test_a_grown_cache_keeps_what_it_holds(ways: FiveWays) -> None:
    given = inputs(ROOM + 1)
    with pytest.raises(ArgumentError, match=f"the context is full: position {ROOM} does not fit {ROOM}"):
        ways.by_index(given)
    ways.executor.sequence.grow(2 * ROOM)
    ways.executor.sequence.reset()
    whole = ways.by_index(given)
    ways.executor.sequence.reset()
    ways.by_index(given[:3])
    ways.executor.sequence.grow(3 * ROOM)
    x = ways.executor.buffer(given[3])
    for i in range(LAYERS):
        x = ways.executor.transformer_layer_indexed(x, i, ways.indexed[i], HIDDEN, FF, ways.eps)
    np.testing.assert_array_equal(x.to_numpy(), whole[3])


def test_what_is_done_to_the_cache_is_done_to_the_sequence(ways: FiveWays) -> None:
    given, cache = inputs(), ways.executor.sequence.cache
    first = ways.by_index(given)
    cache.truncate(1)
    assert ways.executor.sequence.lengths == [1, 1]
    np.testing.assert_array_equal(ways.by_index(given[1:])[1], first[2])
    cache.reset()
    assert ways.executor.sequence.lengths == [0, 0]
    for made, expected in zip(ways.by_index(given), first, strict=True):
        np.testing.assert_array_equal(made, expected)


@pytest.mark.slow
def test_the_rotations_follow_a_cache_that_grows(llama_path: Path, kernels: Path) -> None:
    given = inputs(5)
    with opened(llama_path, "llama", kernels) as executor:
        rows = FiveWays(executor, LAYERS, HIDDEN, FF, EPS["llama"]).by_index(given)
        small = executor.init_kv_cache(LAYERS, HEADS, KV_HEADS, HEAD_DIM, 3)
        ways = FiveWays(executor, LAYERS, HIDDEN, FF, EPS["llama"])
        made = ways.by_index(given[:3])
        small.grow(5)
        made += ways.by_index(given[3:])
        np.testing.assert_array_equal(np.stack(made), np.stack(rows))
        small.grow(6)
        hidden = executor.buffer(given[4])
        with executor.capture() as graph:
            for i, weights in enumerate(ways.indexed):
                executor.transformer_layer_workspace_for_capture(hidden, i, weights, HIDDEN, FF, ways.eps)
        graph.replay(4)
        np.testing.assert_array_equal(hidden.to_numpy(), rows[4])
        allocated = executor.device.memory().allocated
        with pytest.raises(ArgumentError, match="max_len must be"):
            executor.sequence.grow(1 << 31)
        assert (small.max_len, executor.device.memory().allocated) == (6, allocated)


def test_a_layer_whose_cache_was_freed_says_so(llama_path: Path, kernels: Path) -> None:
    with opened(llama_path, "llama", kernels) as executor:
        layers = executor.build_indexed_weights(LAYERS, HIDDEN, FF)
        executor.sequence.cache.free()
        with pytest.raises(DeviceError, match="the KV cache was freed"):
            executor.transformer_layer_indexed(inputs()[0], 0, layers[0], HIDDEN, FF, 1e-5)
        with pytest.raises(ArgumentError, match="head_dim must be"):
            executor.init_kv_cache(LAYERS, HEADS, KV_HEADS, 36, ROOM)
        executor.init_kv_cache(LAYERS, HEADS, KV_HEADS, HEAD_DIM, ROOM)
        executor.transformer_layer_indexed(inputs()[0], 0, layers[0], HIDDEN, FF, 1e-5)


class TestAttention:
    def test_it_is_the_softmax_over_all_positions_so_far(self, executor: CudaExecutor) -> None:
        rng, tokens = np.random.default_rng(8), 3
        q = rng.standard_normal((tokens, HEADS, HEAD_DIM)).astype(np.float32)
        k, v = rng.standard_normal((2, tokens, KV_HEADS, HEAD_DIM)).astype(np.float32)
        for token in range(tokens):
            out, length = executor.incremental_attention_async(1, q[token], k[token], v[token])
            assert length == token + 1
            keys, values = (np.repeat(x[:length], HEADS // KV_HEADS, axis=1).astype("f8") for x in (k, v))
            scores = np.einsum("hd,khd->hk", q[token].astype("f8"), keys) / np.sqrt(HEAD_DIM)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            expected = np.einsum("hk,khd->hd", weights / weights.sum(1, keepdims=True), values)
            # f32 sums of 64 and 3 terms of size 1, and an exponential: under 100 roundings
            np.testing.assert_allclose(out.to_numpy(), expected, rtol=0, atol=100 * UNIT * np.abs(values).max())
        assert executor.sequence.lengths == [0, tokens]

    @pytest.mark.parametrize(("q", "k", "what"), [((3, 64), (2, 64), "q"), ((4, 64), (2, 32), "k")])
    def test_wrong_shapes_are_refused(self, q: tuple[int, int], k: tuple[int, int], what: str, executor: CudaExecutor) -> None:
        with pytest.raises(ArgumentError, match=rf"{what} is f32\[.*\]; must be f32\["):
            executor.incremental_attention_async(0, executor.zeros(*q), executor.zeros(*k), executor.zeros(*k))
        assert executor.sequence.lengths == [0, 0]


class TestErrors:
    def test_no_cache(self) -> None:
        with (
            CudaExecutor("emulator") as executor,
            pytest.raises(ArgumentError, match="there is no KV cache yet; init_kv_cache"),
        ):
            executor.build_indexed_weights(1, HIDDEN, FF)

    def test_no_such_layer(self, ways: FiveWays) -> None:
        with pytest.raises(ArgumentError, match="no layer 2; the KV cache has layers 0 to 1"):
            ways.executor.transformer_layer_indexed(inputs()[0], 2, ways.indexed[0], HIDDEN, FF, ways.eps)

    def test_a_gap(self, ways: FiveWays) -> None:
        with pytest.raises(ArgumentError, match="position 1 of layer 0 must be from 0 to 0"):
            ways.executor.transformer_layer_workspace(inputs()[0], 0, ways.indexed[0], HIDDEN, FF, ways.eps, 1)

    def test_a_prefix_that_is_not_there(self, ways: FiveWays) -> None:
        gamma = ways.executor.zeros(HIDDEN)
        with pytest.raises(ModelError, match=r"no weight is called blk\.7\.attn_q\.weight; near: blk"):
            ways.executor.transformer_layer_gpu(inputs()[0], 0, "blk.7", HIDDEN, FF, gamma, gamma, 1e-5)

    def test_another_width(self, ways: FiveWays) -> None:
        with pytest.raises(ModelError, match=r"asked|the layer needs"):
            ways.executor.build_indexed_weights(LAYERS, HIDDEN, 2 * FF)
        with pytest.raises(ArgumentError, match=r"attn_norm_gamma is f32\[7\]; must be f32\[256\]"):
            ways.executor.transformer_layer_gpu(
                inputs()[0], 0, "blk.0", HIDDEN, FF, ways.executor.zeros(7), ways.executor.zeros(HIDDEN), 1e-5
            )

    def test_a_layer_that_fails_takes_no_position_and_leaves_no_memory(self, ways: FiveWays) -> None:
        executor = ways.executor
        ways.by_index(inputs(1))
        before = executor.device.memory().allocated

        def fail(record: LaunchRecord) -> None:
            if record.place.operation == "ffn_down":
                raise RuntimeError("observer")

        executor.launcher.observers.append(fail)
        with pytest.raises(RuntimeError, match="observer"):
            executor.transformer_layer_indexed(inputs()[0], 0, ways.indexed[0], HIDDEN, FF, ways.eps)
        assert executor.sequence.lengths == [1, 1]
        assert executor.device.memory().allocated == before

    def test_profiling_that_is_off(self, ways: FiveWays) -> None:
        with pytest.raises(ArgumentError, match="tile profiling is off; enable_tile_profiling"):
            ways.profiled(inputs(1))
        with pytest.raises(ArgumentError, match="tile profiling is off"):
            ways.executor.tile_summary()


def test_a_layer_in_the_workspace_allocates_nothing(ways: FiveWays) -> None:
    hidden, executor = ways.executor.buffer(inputs()[0]), ways.executor
    ways.in_workspace(inputs(1))
    before = executor.device.allocations.mark()
    for i, weights in enumerate(ways.indexed):
        executor.transformer_layer_workspace(hidden, i, weights, HIDDEN, FF, ways.eps, 1)
    assert executor.device.allocations.mark() == before


def test_profiled_layers_are_steps_of_the_profiler(ways: FiveWays) -> None:
    ways.executor.enable_tile_profiling()
    ways.profiled(inputs(2))
    profiler = ways.executor.tile_profiler
    assert profiler.steps == 2 * LAYERS
    assert {tile.place.layer for tile in profiler.tiles} == {0, 1}
    attention = [tile.work.flops for tile in profiler.tiles if tile.place.operation == "attention"]
    assert attention[0] == attention[1] < attention[2] == attention[3]  # of one position, then of two
    assert ways.executor.tile_summary().row_count > 0
    ways.executor.disable_tile_profiling()
    assert ways.executor.launcher.observers == []


class TestOutliers:
    def test_the_verdict_of_a_site_is_kept_until_a_weight_is_replaced(self, executor: CudaExecutor) -> None:
        x = np.ones(1536, np.float32)
        assert not executor.detect_input_outlier(x)
        x[408] = OUTLIER
        assert executor.detect_input_outlier(x, (0, "attn_norm"))
        assert executor.detect_input_outlier(np.ones(1536, np.float32), (0, "attn_norm"))
        gamma = executor.weights["blk.0.attn_norm.weight"].buffer.to_numpy()
        executor.load_weight("blk.0.attn_norm.weight", gamma, "F32", gamma.shape)
        assert not executor.detect_input_outlier(np.ones(1536, np.float32), (0, "attn_norm"))

    @pytest.mark.parametrize(
        ("site", "said"),
        [
            ((0, "attn_q"), "'attn_q'; allowed: attn_norm, attention, ffn_norm, ffn_swiglu"),
            ((None, "output_norm"), "the layer of the site is None"),
            ((0, "output_norm"), "'output_norm'; allowed: attn_norm"),
            ((LAYERS, "attn_norm"), f"the layer of the site is {LAYERS}; allowed: a whole number from 0 to {LAYERS - 1}"),
            ((0.0, "attn_norm"), r"the layer of the site is 0\.0"),
            ("attn_norm", "site is 'attn_norm'; allowed: a layer and one of attn_norm"),
        ],
    )
    def test_a_site_whose_verdict_would_decide_nothing_is_refused(self, executor: CudaExecutor, site: Any, said: str) -> None:
        records: list[LaunchRecord] = []
        executor.launcher.observers.append(records.append)
        with pytest.raises(ArgumentError, match=said):
            executor.detect_input_outlier(np.ones(HIDDEN, np.float32), site)
        assert records == []

    @pytest.mark.parametrize("operation", ["attn_norm", "attention", "ffn_norm", "ffn_swiglu"])
    def test_the_verdict_of_every_site_decides(self, executor: CudaExecutor, operation: str) -> None:
        loud = np.ones(HIDDEN, np.float32)
        loud[3] = 100.0
        executor.profile = GpuProfile("fast")
        executor.load_weight("any", loud, "F32", loud.shape)
        executor.load_weight("any", loud, "F32", loud.shape)  # no verdicts are left from before
        executor.detect_input_outlier(loud, (1, operation))
        first, second = executor.build_indexed_weights(LAYERS, HIDDEN, FF)
        assert {p.kernel.digits for p in first.projections.values()} == {1}  # type: ignore[attr-defined]
        assert {p.kernel.digits for p in second.projections.values()} == {1, 3}  # type: ignore[attr-defined]

    def test_what_reads_a_flagged_input_gets_an_accurate_kernel(self, executor: CudaExecutor) -> None:
        executor.profile = GpuProfile("fast")
        x = np.ones(HIDDEN, np.float32)
        x[3] = 100.0
        executor.load_weight("any", x, "F32", x.shape)
        executor.load_weight("any", x, "F32", x.shape)  # no verdicts are left from before
        plain = executor.build_indexed_weights(LAYERS, HIDDEN, FF)
        executor.detect_input_outlier(x, (1, "ffn_swiglu"))
        routed = executor.build_indexed_weights(LAYERS, HIDDEN, FF)

        def digits(layers: tuple[Any, ...]) -> dict[str, int]:
            return {f"{i} {role}": p.kernel.digits for i, layer in enumerate(layers) for role, p in layer.projections.items()}

        assert set(digits(plain).values()) == {1}
        assert {site: d for site, d in digits(routed).items() if d != 1} == {"1 ffn_down": 3}
