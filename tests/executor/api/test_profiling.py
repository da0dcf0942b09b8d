"""CudaExecutor's tile profiler and debug mode, on the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q
from numpy.typing import NDArray

from executor import CudaExecutor
from executor.base.errors import NumericalFault
from executor.measure.tile_summary import UNCOVERED
from executor.model.decode_profile import profile_decoding
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError
from tests.executor.launch.kernels import Scale
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

HIDDEN, FF, EPSILON = 64, 96, 1e-5
LAYERS = 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", types=Q.Q8_0, layers=LAYERS, hidden=HIDDEN, heads=2, kv_heads=1, ff=FF, context=32)


@pytest.fixture
def executor(path: Path) -> Iterator[CudaExecutor]:
    with CudaExecutor("emulator") as opened:
        opened.load_weights(path)
        opened.init_kv_cache(LAYERS, heads=2, kv_heads=1, head_dim=32, max_len=32)
        yield opened


def run(executor: CudaExecutor, tokens: int, *, profiled: bool) -> NDArray[np.float32]:
    """f32[tokens, HIDDEN]: random vectors through both layers."""
    executor.sequence.reset()
    layer = executor.transformer_layer_gpu_tiled_profiled if profiled else executor.transformer_layer_gpu
    rows = []
    for x in np.random.default_rng(1).standard_normal((tokens, HIDDEN), np.float32):
        hidden = executor.buffer(x)
        for i in range(LAYERS):
            attn, ffn = (executor.weights[f"blk.{i}.{name}.weight"].buffer for name in ("attn_norm", "ffn_norm"))
            hidden = layer(hidden, i, f"blk.{i}", HIDDEN, FF, attn, ffn, EPSILON)
        rows.append(hidden.to_numpy())
    return np.stack(rows)


@pytest.mark.slow
def test_a_profiled_layer_has_the_bits_and_the_launches_of_one_that_is_not(executor: CudaExecutor) -> None:
    plain = run(executor, 3, profiled=False)
    profiler = executor.enable_tile_profiling()
    with profiler.step():
        assert np.array_equal(run(executor, 3, profiled=False).view(np.uint32), plain.view(np.uint32))
    eager = [(tile.place, tile.kernel) for tile in profiler.tiles]
    profiler.clear()
    assert np.array_equal(run(executor, 3, profiled=True).view(np.uint32), plain.view(np.uint32))
    assert [(tile.place, tile.kernel) for tile in profiler.tiles] == eager
    assert profiler.steps == 3 * LAYERS
    assert [tile.length for tile in profiler.tiles if str(tile.place) == "layer 1 attention"] == [1, 2, 3]


def test_the_summary_is_a_table_of_what_was_timed(executor: CudaExecutor) -> None:
    executor.enable_tile_profiling()
    run(executor, 1, profiled=True)
    table = executor.tile_summary(by="level")
    assert [column.header for column in table.columns][:3] == ["Level", "Samples", "us each"]
    assert [str(cell) for cell in table.columns[0].cells] == ["Macro", "Midi", "Micro", UNCOVERED, "all"]


def test_switched_off_nothing_is_timed_and_nothing_watches(executor: CudaExecutor) -> None:
    first = executor.enable_tile_profiling()
    assert executor.enable_tile_profiling() is first
    executor.disable_tile_profiling()
    executor.disable_tile_profiling()
    assert executor.launcher.observers == []
    for refused in (executor.tile_summary, lambda: run(executor, 1, profiled=True)):
        with pytest.raises(ArgumentError, match="enable_tile_profiling"):
            refused()


def test_replayed_decoding_is_timed_and_gives_the_same_tokens(executor: CudaExecutor, path: Path) -> None:
    model = executor.load_model(path)
    plain = [executor.replay_decode(model, token) for token in (1, None, None)]
    model.decoder.reset()
    profiler = executor.enable_tile_profiling()
    assert [executor.replay_decode(model, token) for token in (1, None, None)] == plain
    assert profiler.steps == 3
    assert len(profiler.tiles) == 3 * len(model.decoder.graph().records)
    executor.disable_tile_profiling()
    executor.replay_decode(model)
    assert profiler.steps == 3


def test_all_that_a_model_decodes_is_timed_while_profiling_is_on_and_nothing_once_it_is_off(
    executor: CudaExecutor, path: Path
) -> None:
    model = executor.load_model(path)
    plain = model.generate([1, 2], max_tokens=3, sampler=Sampler(), stop_tokens=())
    profiler = executor.enable_tile_profiling()
    later = executor.load_model(path)
    for one in (model, later):
        profiler.clear()
        one.forget()
        assert one.generate([1, 2], max_tokens=3, sampler=Sampler(), stop_tokens=()).tokens == plain.tokens
        one.logits([1, 2])
        assert profiler.steps == 4 + 2
    executor.replay_decode(model, 1)
    executor.disable_tile_profiling()
    steps = profiler.steps
    for one in (model, later):
        assert one.generate([1, 2], max_tokens=3, sampler=Sampler(), stop_tokens=()).tokens == plain.tokens
        assert not one.decoder.graph().stamped
    assert profiler.steps == steps


def test_a_profile_of_decoding_leaves_profiling_on(executor: CudaExecutor, path: Path) -> None:
    model = executor.load_model(path)
    profiler = executor.enable_tile_profiling()
    assert len(profile_decoding(model.decoder, 1, 2).tiles.tiles) > 0
    assert profiler.steps == 0
    model.logits([1])
    assert profiler.steps == 1


def test_the_debug_mode_checks_what_the_executor_launches_and_goes_with_no_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_DEBUG", "1")
    with CudaExecutor("emulator") as executor:
        x, y = executor.buffer(np.full(4, np.inf, np.float32)), executor.zeros(4)
        with pytest.raises(NumericalFault, match="test_scale"):
            executor.launcher(Scale(n=4), y=y, x=x, factor=1.0, offset=0)
        with pytest.raises(ArgumentError, match="GPU_DEBUG"):
            executor.enable_tile_profiling()
