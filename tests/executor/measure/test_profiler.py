"""The tile profiler on the emulator: what is timed, what it is counted as, and that nothing else changes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.base.errors import LaunchError
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import LoadedKernel
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, LayerOperation, Plan
from executor.launch.modules import Modules
from executor.measure.profiler import LEVELS, Limit, TileLevel, TileProfiler, level_of, work_of
from executor.measure.tile_summary import spans, uncovered
from executor.memory.buffers import GpuBuffer
from executor.model.decode_profile import profile_decoding
from executor.model.generation import LanguageModel
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import entries, find
from tests.executor.launch.kernels import Scale
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Iterator[LanguageModel]:
    path = write_model(
        tmp_path_factory.mktemp("model") / "m.gguf", types=Q.Q8_0, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=32
    )
    with pytest.MonkeyPatch.context() as patch, EmulatedDevice() as device:
        patch.setenv("PTXGEN_CACHE_DIR", str(kernels))
        yield LanguageModel.load(path, device)


@pytest.fixture
def model(loaded: LanguageModel) -> Iterator[LanguageModel]:
    """A new sequence without a profiler."""
    loaded.decoder.reset()
    yield loaded
    loaded.decoder.profiler = None


def scale(device: Device) -> tuple[Launcher, Plan, GpuBuffer]:
    launcher = Launcher(device, Modules(device))
    x = GpuBuffer.from_numpy(device, np.arange(100, dtype=np.float32))
    y = GpuBuffer.zeros(device, x.dtype, x.shape)
    return launcher, launcher.prepare(Scale(n=100), LayerOperation(3, "attn_q"), y=y, x=x, factor=2.0, offset=1), y


def test_every_family_of_the_catalogue_has_a_level() -> None:
    families = {entry.type.family for entry in entries().values()}
    assert families <= set(LEVELS)
    assert [level_of(find(name).make(**shape)) for name, shape in KERNELS] == ["Macro", "Midi", "Micro"]


KERNELS = (
    ("q8_0_gemv", {"k": 32, "n": 1}),
    ("incremental_attention", {"heads": 1, "kv_heads": 1, "head_dim": 32, "max_len": 8}),
    ("rmsnorm", {"hidden": 32}),
)


def test_a_family_that_nobody_here_knows_is_counted_apart() -> None:
    assert level_of(Scale(n=1)) is TileLevel.OTHER


def test_attention_has_the_work_of_the_positions_that_there_are() -> None:
    kernel = find("incremental_attention").make(heads=4, kv_heads=2, head_dim=32, max_len=128)
    assert work_of(kernel, 8).flops * 16 == work_of(kernel, 128).flops
    assert work_of(kernel, None) == work_of(kernel, 128)
    assert work_of(Scale(n=100), 8) == Scale(n=100).work()


def test_a_profiled_step_has_the_bits_of_one_that_is_not(model: LanguageModel) -> None:
    tokens = [1, 2, 3, 4]
    plain = model.logits(tokens)
    model.decoder.profiler = profiler = TileProfiler(model.device)
    assert np.array_equal(plain.view(np.uint32), model.logits(tokens).view(np.uint32))
    assert profiler.steps == len(tokens)


def test_every_launch_of_a_step_is_timed_once_and_in_order(model: LanguageModel) -> None:
    model.decoder.profiler = profiler = TileProfiler(model.device)
    model.logits([1, 2])
    calls = model.decoder.prepare().launches.calls
    timed = [(tile.step, tile.place, tile.kernel) for tile in profiler.tiles]
    assert timed == [(step, call.place, call.kernel) for step in (0, 1) for call in calls]
    assert all(tile.seconds > 0 for tile in profiler.tiles)
    assert all(tile.start >= before.end for before, tile in pairwise(profiler.tiles))  # the emulator runs one after another
    assert sum(tile.share for tile in profiler.tiles) + uncovered(profiler.tiles) == sum(spans(profiler.tiles))


def test_the_decoder_tells_the_profiler_how_long_the_sequence_is(model: LanguageModel) -> None:
    model.decoder.profiler = profiler = TileProfiler(model.device)
    model.logits([1, 2, 3])
    attention = [tile for tile in profiler.tiles if tile.place == LayerOperation(0, "attention")]
    assert [tile.length for tile in attention] == [1, 2, 3]
    assert [tile.work for tile in attention] == [work_of(tile.kernel, tile.length) for tile in attention]
    assert attention[0].work.bytes < attention[2].work.bytes


def test_without_a_profiler_the_decoder_goes_back_to_the_graph_that_it_had(model: LanguageModel) -> None:
    model.decoder.step(1)
    before = model.decoder.graph()
    assert not before.stamped
    model.decoder.profiler = TileProfiler(model.device)
    model.decoder.step(1)
    assert model.decoder.graph().stamped
    model.decoder.profiler = None
    assert model.decoder.graph() is before


def test_an_eager_step_times_what_the_launcher_launches_in_it(emulator: Device) -> None:
    launcher, plan, _ = scale(emulator)
    profiler = TileProfiler(emulator)
    launcher.observers.append(profiler)
    plan()
    assert (profiler.untimed, profiler.tiles) == (1, [])
    with profiler.step(length=5):
        plan()
        plan()
    assert [(tile.step, tile.place, tile.length) for tile in profiler.tiles] == [(0, LayerOperation(3, "attn_q"), 5)] * 2
    assert profiler.tiles[0].work == Scale(n=100).work()


def test_compiling_a_kernel_counts_to_no_launch(emulator: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, plan, y = scale(emulator)
    x, load, slow = GpuBuffer.zeros(emulator, y.dtype, y.shape), launcher.modules.load, 0.5

    def loaded(kernel: KernelType, *, dependent: bool) -> LoadedKernel:
        time.sleep(slow)
        return load(kernel, dependent=dependent)

    monkeypatch.setattr(launcher.modules, "load", loaded)
    profiler = TileProfiler(emulator)
    launcher.observers.append(profiler)
    with profiler.step():
        launcher(Scale(n=100), LayerOperation(3, "attn_q"), y=y, x=x, factor=2.0, offset=1)
        plan()
        launcher(Scale(n=100), LayerOperation(3, "attn_k"), y=y, x=x, factor=2.0, offset=1)
    assert [tile.place.operation for tile in profiler.tiles] == ["attn_q", "attn_q", "attn_k"]
    assert sum(tile.seconds for tile in profiler.tiles) < slow
    assert profiler.tiles[2].start - profiler.tiles[1].start > slow * 1e9  # it did take that time
    assert sum(tile.share for tile in profiler.tiles) < slow * 1e9 < uncovered(profiler.tiles)


def test_plans_are_run_once_as_a_step(emulator: Device) -> None:
    _, plan, y = scale(emulator)
    profiler = TileProfiler(emulator)
    profiler.run([plan])
    assert y.to_numpy()[7] == 15.0
    assert (len(profiler.tiles), profiler.steps) == (1, 1)


def test_a_step_that_an_exception_ends_is_not_counted(emulator: Device) -> None:
    launcher, plan, _ = scale(emulator)
    profiler = TileProfiler(emulator)
    launcher.observers.append(profiler)
    with pytest.raises(LaunchError, match="offset"), profiler.step():
        _interrupted(plan)
    with profiler.step():
        plan()
    assert (len(profiler.tiles), profiler.steps) == (1, 1)


def _interrupted(plan: Plan) -> None:
    plan()
    plan(offset=1 << 30)


def test_a_step_in_a_step_and_a_graph_without_stamps_are_refused(emulator: Device) -> None:
    launcher, plan, _ = scale(emulator)
    profiler = TileProfiler(emulator)
    with profiler.step(), pytest.raises(ArgumentError, match="profiled already"), profiler.step():
        pass
    graph = LaunchGraph(launcher.device, [plan])
    graph.replay()
    with pytest.raises(LaunchError, match="stamped=True"):
        profiler.add(graph)


def test_steps_of_graphs_and_of_an_observer_are_on_one_clock(emulator: Device) -> None:
    launcher, plan, _ = scale(emulator)
    profiler = TileProfiler(emulator)
    profiler.run([plan])
    launcher.observers.append(profiler)
    with profiler.step():
        plan()
    profiler.run([plan])
    first, second, third = profiler.tiles
    assert 0 < first.start < first.end < second.start < second.end < third.start


class Marking(EmulatedDevice):
    """Counts the moments that were marked."""

    marks = 0

    def record(self) -> float:
        self.marks += 1
        return super().record()


def test_launches_cost_an_event_each_while_profiled_and_nothing_when_not() -> None:
    with Marking() as device:
        launcher, plan, _ = scale(device)
        profiler = TileProfiler(device)
        device.marks = device.waits = 0
        plan()
        assert (device.marks, device.waits) == (0, 0)
        launcher.observers.append(profiler)
        with profiler.step():
            for _ in range(5):
                plan()
            assert (device.marks, device.waits) == (6, 0)
        assert device.waits == 1


def test_a_profile_of_decoding_times_the_same_steps_twice_and_leaves_the_sequence_as_it_was(model: LanguageModel) -> None:
    model.logits([1, 2, 3])
    seen: list[tuple[int, int]] = []
    profile = profile_decoding(model.decoder, 4, 3, progress=lambda done, total: seen.append((done, total)))
    assert [tile.length for tile in profile.tiles.tiles if tile.place.operation == "embed"] == [6, 7, 8]
    assert profile.step_seconds > 0
    assert seen == [(done, 10) for done in range(1, 11)]
    assert (model.decoder.position, model.decoder.profiler) == (3, None)
    model.decoder.step(4)
    after = model.decoder.logits()
    assert np.array_equal(after, model.logits([1, 2, 3, 4])[-1])


@pytest.mark.parametrize(("steps", "said"), [(0, "at least 1"), (31, "need room for 33 tokens; 32 are left")])
def test_a_number_of_steps_that_cannot_be_is_refused(model: LanguageModel, steps: int, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        profile_decoding(model.decoder, 1, steps)


def test_a_model_that_is_watched_launch_by_launch_is_not_profiled(model: LanguageModel) -> None:
    model.decoder.launcher.observers.append(lambda record: None)
    try:
        with pytest.raises(ArgumentError, match="GPU_DEBUG"):
            profile_decoding(model.decoder, 1, 1)
    finally:
        model.decoder.launcher.observers.clear()


def test_a_tile_keeps_no_memory_of_the_device(emulator: Device) -> None:
    _, plan, _ = scale(emulator)
    profiler = TileProfiler(emulator)
    profiler.run([plan])
    held = [getattr(profiler.tiles[0], field.name) for field in dataclasses.fields(profiler.tiles[0])]
    assert not any(isinstance(value, GpuBuffer | Plan) for value in held)


@pytest.mark.parametrize(("read_bytes", "flops"), [(0.0, 0.0), (-1.0, 0.0), (1.0, -1.0), (float("nan"), 0.0)])
def test_a_limit_that_is_none_is_refused(read_bytes: float, flops: float) -> None:
    with pytest.raises(ArgumentError, match="read_bytes above 0"):
        Limit(read_bytes, flops)


def test_a_limit_gives_the_least_time() -> None:
    work = Scale(n=1000).work()  # 2000 operations, 8000 bytes
    assert Limit(8000.0).seconds(work) == 1.0
    assert Limit(80000.0, 1000.0).seconds(work) == 2.0
