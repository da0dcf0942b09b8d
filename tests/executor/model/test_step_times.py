"""Which steps are timed, with which kernels, and in which order, on the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from executor.launch.graph import LaunchGraph
from executor.model import step_times as step_times_module
from executor.model.decoder import Decoder
from executor.model.generation import LanguageModel
from executor.model.step_times import Turn, context_for, step_times
from executor.tune.keep import Gain
from tests.synthetic import write_model

PROFILES = [GpuProfile(), GpuProfile(gemv={"q8_0": "q8_0_gemv"})]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    write_model(path, types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=128)
    with EmulatedDevice() as device, LanguageModel.load(path, device, context=96, profile=GpuProfile()) as loaded:
        yield loaded


@pytest.mark.parametrize(("rows", "of_all", "scored"), [(1, 1, 1), (3, 4, 4), (65, 128, 1)])
def test_each_profile_has_its_turn_in_one_order_and_then_in_the_other(
    rows: int, of_all: int, scored: int, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing, timed = [False], list[LaunchGraph]()
    launch, before = EmulatedDevice.launch_graph, model.device.memory().allocated

    def launch_graph(self: EmulatedDevice, graph: Any, work: Any = None) -> None:
        launch(self, graph, work)
        timed.extend([work] * timing[0])

    def record(self: EmulatedDevice) -> float:
        timing[0] = not timing[0]
        return float(timing[0])

    model.decoder.reset()
    model.decoder.feed([5, 6])
    monkeypatch.setattr(EmulatedDevice, "launch_graph", launch_graph)
    monkeypatch.setattr(EmulatedDevice, "record", record)
    times = step_times(model.decoder, rows, PROFILES, 3)
    assert [len(one) for one in times] == [4, 4]
    kernels = [[plan.kernel for plan in graph.plans] for graph in timed]
    assert [one != kernels[0] for one in kernels] == [False, True, True, False] * 2
    places = {plan.record.place.operation: plan.kernel for plan in timed[0].plans}
    assert (places["embed"].parameters().get("m") or 1) == of_all
    assert (places["argmax"].parameters().get("m") or 1) == scored
    assert model.decoder.position == 2
    model.decoder.step(7)
    np.testing.assert_array_equal(model.decoder.logits(), model.logits([5, 6, 7])[-1])
    model.decoder.reset()
    model.decoder.rest()
    assert model.device.memory().allocated <= before


def test_what_is_faster_for_its_place_in_memory_is_no_gain(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    there, order = [0], []

    @contextmanager
    def placed(decoder: Decoder, profile: GpuProfile, rows: int) -> Iterator[Turn]:
        there[0] += 1
        order.append(profile)
        seconds = itertools.cycle([1.0, 1.001]) if there[0] == 1 else itertools.cycle([1.1, 1.101])
        yield lambda: next(seconds)
        there[0] -= 1

    monkeypatch.setattr(step_times_module, "_several", placed)
    gain = Gain.of(2, *step_times(model.decoder, 2, PROFILES, 9))
    assert order == [*PROFILES, *reversed(PROFILES)]
    assert not gain.faster
    assert not gain.slower


def test_there_is_room_for_prompts_and_for_sequences_as_far_as_the_model_has_it(model: LanguageModel) -> None:
    spec = replace(model.spec, context_length=1024)
    assert [context_for(spec, rows) for rows in ([1], [1, 64], [65], [1, 512], [4096])] == [64, 64, 96, 512, 1024]
