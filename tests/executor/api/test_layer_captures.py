"""Layers, matrices and models as graphs: what can be captured, what a replay gives, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executor import CudaExecutor, GpuProfile
from executor.base.errors import LaunchError
from executor.launch.launch import LaunchRecord
from ptxgen.errors import ArgumentError
from tests.executor.api.five_ways import FiveWays
from tests.executor.api.layer_model import FF, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, ROOM, inputs, opened, written


@pytest.fixture
def executor(layered: CudaExecutor) -> CudaExecutor:
    return layered


class TestCaptures:
    @pytest.mark.slow
    def test_a_graph_serves_every_position_from_any_on(self, ways: FiveWays) -> None:
        given = inputs(5)
        expected = ways.in_workspace(given)
        ways.executor.sequence.reset()
        hidden = ways.executor.buffer(given[0])
        for position in range(2):
            hidden.upload(given[position])
            for i, weights in enumerate(ways.indexed):
                ways.executor.transformer_layer_workspace(hidden, i, weights, HIDDEN, FF, ways.eps, position)
        with ways.executor.capture() as graph:
            for i, weights in enumerate(ways.indexed):
                ways.executor.transformer_layer_workspace_for_capture(hidden, i, weights, HIDDEN, FF, ways.eps)
        for position in range(2, 5):
            hidden.upload(given[position])
            graph.replay(position)
            np.testing.assert_array_equal(hidden.to_numpy(), expected[position])
        with pytest.raises(ArgumentError, match="position 7 of layer 0 must be from 0 to 5"):
            graph.replay(7)
        with pytest.raises(ArgumentError, match="needs the position of its token, got None"):
            graph.replay()

    def test_gemvs_and_feed_forwards_can_be_captured(self, executor: CudaExecutor) -> None:
        name, x, y = "blk.0.attn_q.weight", executor.buffer(inputs()[0]), executor.zeros(HIDDEN)
        ffn = tuple(f"blk.0.ffn_{role}.weight" for role in ("gate", "up", "down"))
        with executor.capture() as graph:
            executor.q4k_gemv_into(name, x, y, HIDDEN, HIDDEN)
            made = executor.fused_ffn_swiglu_gpu(y, ffn[0], ffn[1], ffn[2], HIDDEN, FF)
        for given in inputs():
            x.upload(given)
            graph.replay()
            replayed = y.to_numpy(), made.to_numpy()
            executor.q4k_gemv_into(name, x, y, HIDDEN, HIDDEN)
            eager = executor.fused_ffn_swiglu_gpu(y, ffn[0], ffn[1], ffn[2], HIDDEN, FF)
            np.testing.assert_array_equal(replayed[0], y.to_numpy())
            np.testing.assert_array_equal(replayed[1], eager.to_numpy())

    def test_while_somebody_observes_the_launches_come_one_by_one(self, executor: CudaExecutor) -> None:
        x, y = executor.buffer(inputs()[0]), executor.zeros(HIDDEN)
        with executor.capture() as graph:
            executor.q4k_gemv_into("blk.0.attn_q.weight", x, y, HIDDEN, HIDDEN)
        graph.replay()
        expected, records = y.to_numpy(), list[LaunchRecord]()
        executor.launcher.observers.append(records.append)
        graph.replay()
        assert [record.kernel for record in records] == [record.kernel for record in graph.records]
        np.testing.assert_array_equal(y.to_numpy(), expected)

    @pytest.mark.parametrize("change", ["profile", "weight", "cache", "kv_cache"])
    def test_a_graph_of_what_has_changed_is_refused(self, change: str, tmp_path: Path, kernels: Path) -> None:
        with opened(written(tmp_path, "llama"), "llama", kernels) as executor:
            ways, hidden = FiveWays(executor, LAYERS, HIDDEN, FF, 1e-5), executor.zeros(HIDDEN)
            with executor.capture() as graph:
                executor.transformer_layer_workspace_for_capture(hidden, 0, ways.indexed[0], HIDDEN, FF, 1e-5)
            graph.replay(0)
            if change == "profile":
                executor.profile = GpuProfile("fast")
            elif change == "weight":
                gamma = executor.weights["blk.0.ffn_norm.weight"].buffer.to_numpy()
                executor.load_weight("blk.0.ffn_norm.weight", gamma, "F32", gamma.shape)
            elif change == "cache":
                executor.sequence.grow(2 * ROOM)
            else:
                executor.init_kv_cache(LAYERS, HEADS, KV_HEADS, HEAD_DIM, ROOM)
            executor.sequence.reset()
            with pytest.raises(LaunchError, match=r"capture it again|was freed"):
                graph.replay(0)

    def test_a_pointer_that_is_freed_after_the_capture_is_refused(self, executor: CudaExecutor) -> None:
        raw = executor.weights["blk.0.attn_q.weight"].buffer.to_numpy()
        memory, x, y = executor.buffer(raw), executor.buffer(inputs()[0]), executor.zeros(HIDDEN)
        with executor.capture() as graph:
            executor.q4k_gemv_into(memory.pointer, x, y, HIDDEN, HIDDEN)
        graph.replay()
        memory.free()
        with pytest.raises(LaunchError, match="was freed"):
            graph.replay()

    def test_copies_are_refused_in_a_capture_and_it_ends_anyway(self, ways: FiveWays) -> None:
        executor, x = ways.executor, inputs()[0]
        layer = (x, 0, ways.indexed[0], HIDDEN, FF, ways.eps)
        qkv = (executor.zeros(HEADS, HEAD_DIM), executor.zeros(KV_HEADS, HEAD_DIM), executor.zeros(KV_HEADS, HEAD_DIM))
        for call in (
            lambda: executor.transformer_layer_indexed(*layer),
            lambda: executor.transformer_layer_workspace(*layer, 0),
            lambda: executor.incremental_attention_async(0, *qkv),
            lambda: executor.detect_input_outlier(x),
            lambda: executor.fused_ffn_q4k(x, None, "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", HIDDEN, FF),
        ):
            with pytest.raises(LaunchError, match="which cannot be captured"), executor.capture():
                call()
        with pytest.raises(LaunchError, match="nothing was launched in the capture"), executor.capture():
            pass
        with pytest.raises(LaunchError, match="a capture is already in progress"), executor.capture(), executor.capture():
            pass
        with pytest.raises(LaunchError, match="no capture is in progress"):
            executor.transformer_layer_workspace_for_capture(*layer)
        executor.transformer_layer_workspace(*layer, 0)

    def test_nothing_is_loaded_in_a_replay(self, ways: FiveWays) -> None:
        hidden = ways.executor.zeros(HIDDEN)
        with ways.executor.capture() as graph:
            ways.executor.transformer_layer_workspace_for_capture(hidden, 0, ways.indexed[0], HIDDEN, FF, ways.eps)
        counts = str(ways.executor.modules.counts)
        graph.replay(0)
        assert str(ways.executor.modules.counts) == counts


def test_a_model_decodes_by_replays(llama: CudaExecutor, kernels: Path, tmp_path: Path) -> None:
    path = written(tmp_path, "qwen2")
    with opened(path, "qwen2", kernels) as executor, executor.load_model(path, context=ROOM) as model:
        logits = model.logits([5, 6])
        model.decoder.reset()
        graph = executor.capture_decode(model)
        assert executor.capture_decode(model) is graph
        assert len(graph.records) == len(model.decoder.prepare().whole)
        assert [executor.replay_decode(model, token) for token in (5, 6)] == [int(row.argmax()) for row in logits]
        following = executor.replay_decode(model)
        assert following == int(model.logits([5, 6, int(logits[1].argmax())])[-1].argmax())
        with pytest.raises(ArgumentError, match="the model is another executor's, on emulator"):
            llama.replay_decode(model, 1)
