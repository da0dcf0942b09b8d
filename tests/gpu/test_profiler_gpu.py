"""The tile profiler, its bits and its times, and the debug mode on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from executor.base.errors import NumericalFault
from executor.device.protocol import Device
from executor.launch.dependencies import dependencies
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, LayerOperation
from executor.launch.modules import Modules
from executor.measure.profiler import TileProfiler
from executor.measure.tile_summary import spans, summed, uncovered
from executor.memory.buffers import GpuBuffer
from executor.model.decode_profile import limit_of, profile_decoding
from executor.model.generation import LanguageModel
from ptxgen.kernels.registry import find
from tests.cli.invoke import invoke
from tests.executor.model.variants import TOKENS
from tests.real_models import smollm2_path

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model(gpu: Device) -> LanguageModel:
    return LanguageModel.load(smollm2_path(), gpu, context=256)


@pytest.fixture(autouse=True)
def without_profiler(model: LanguageModel) -> Iterator[None]:
    model.decoder.reset()
    yield
    model.decoder.profiler = None


def test_profiled_steps_have_the_bits_of_others_and_every_launch_takes_time(gpu: Device, model: LanguageModel) -> None:
    plain = model.logits(TOKENS)
    model.decoder.profiler = profiler = TileProfiler(gpu)
    assert np.array_equal(model.logits(TOKENS).view(np.uint32), plain.view(np.uint32))
    assert len(profiler.tiles) == len(TOKENS) * len(model.decoder.graph().records)
    assert all(0 < tile.seconds < 1e-2 for tile in profiler.tiles)
    assert sum(tile.share for tile in profiler.tiles) + uncovered(profiler.tiles) == sum(spans(profiler.tiles))


def test_the_table_of_a_step_adds_up_to_within_5_percent_of_the_step_without_stamps(model: LanguageModel) -> None:
    model.logits([1, 2, 3])
    profile = profile_decoding(model.decoder, 4, 64)
    tiles = profile.tiles.tiles
    added = sum(tile.share for tile in tiles) + uncovered(tiles)
    assert added * 1e-9 / profile.tiles.steps == pytest.approx(profile.step_seconds, rel=0.05)


def test_a_stamped_launch_begins_after_the_end_of_those_that_it_waits_for(gpu: Device, model: LanguageModel) -> None:
    model.decoder.profiler = TileProfiler(gpu)
    model.logits(TOKENS)
    graph = model.decoder.graph()
    moments = graph.moments()
    for number, before in enumerate(dependencies([[*plan.accesses.values()] for plan in graph.plans])):
        assert all(moments[other].end <= moments[number].began for other in before), graph.records[number]


def test_a_large_gemv_is_timed_within_its_limit_and_as_a_chain_of_launches_is(gpu: Device) -> None:
    """4096 x 128256 Q4_K, 295 MB: no cache holds it, so the time in a stamped graph is that of reading it, and so is the mean
    of a graph of the same launches without stamps. 10 % and 3 us are room for the start of a launch and for clocks."""
    kernel = find("hw_dp4a_q4k_gemv").make(k=4096, n=128256)
    inputs = find("hw_dp4a_q4k_gemv").make(k=4096, n=512).inputs(np.random.default_rng(0))
    arguments = {name: GpuBuffer.from_numpy(gpu, array) for name, array in inputs.items() if name not in ("w", "y")}
    rows = np.tile(inputs["w"], (-(-128256 // 512), 1))[:128256]
    launcher = Launcher(gpu, Modules(gpu))
    w, y = GpuBuffer.from_numpy(gpu, np.ascontiguousarray(rows)), GpuBuffer.from_numpy(gpu, np.zeros(128256, np.float32))
    plan = launcher.prepare(kernel, LayerOperation(None, "output"), y=y, w=w, **arguments)
    profiler = TileProfiler(gpu, limit_of(gpu))
    for _ in range(3):
        profiler.run([plan] * 8)
    row = summed(profiler.tiles[8:], "operation", profiler.limit)[0]
    graph = LaunchGraph(launcher.device, [plan] * 8)
    times = []
    for _ in range(5):
        start = gpu.record()
        graph.replay()
        times.append(gpu.elapsed(start, gpu.record()) / 8)
    graph.close()
    assert row.limit_share is not None
    assert 0.5 < row.limit_share < 1.1
    assert abs(row.average_us - min(times) * 1e6) < 0.1 * min(times) * 1e6 + 3


def test_eager_launches_are_timed_by_the_observer(gpu: Device, model: LanguageModel) -> None:
    profiler = TileProfiler(gpu)
    launcher = model.decoder.launcher
    plain = model.logits([1, 2])
    launcher.observers.append(profiler)
    try:
        model.decoder.reset()
        waits = gpu.waits
        with profiler.step(length=1):
            model.decoder.step(1)
            assert gpu.waits == waits
        with profiler.step(length=2):
            model.decoder.step(2)
    finally:
        launcher.observers.remove(profiler)
    assert np.array_equal(model.decoder.logits(), plain[1])
    assert len(profiler.tiles) == 2 * len(model.decoder.prepare().launches.calls)
    assert all(tile.seconds > 0 for tile in profiler.tiles)


def test_the_command_writes_what_it_promises(tmp_path: Path) -> None:
    result = invoke("ptxrun", "profile", smollm2_path(), "-o", tmp_path, "--device", "cuda:0", "--tokens", "32", "--no-plot")
    assert result.exit_code == 0, result.output
    assert "% limit" in result.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["limit"]["read_bytes_per_second"] > 1e11
    assert all(row["share_of_limit"] > 0 for row in summary["tiles"]["level"])
    assert summary["step_to_untimed"] == pytest.approx(1.0, abs=0.05)


def test_the_debug_mode_names_the_launch_that_wrote_nan(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_DEBUG", "1")
    model = LanguageModel.load(smollm2_path(), gpu, context=64)
    good = model.logits(TOKENS)
    assert np.isfinite(good).all()
    gamma = model.decoder.weights["blk.3.ffn_norm.weight"].buffer
    values = gamma.to_numpy()
    values[7] = np.nan
    gamma.upload(values)
    with pytest.raises(NumericalFault, match="layer 3 ffn_norm: ") as caught:
        model.logits(TOKENS)
    assert (caught.value.layer, caught.value.operation, caught.value.index[-1], caught.value.count) == (3, "ffn_norm", 7, 1)
