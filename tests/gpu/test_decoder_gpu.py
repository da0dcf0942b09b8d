"""A decode step on a GPU at the shape of Llama-3.2-1B: replay, eager launches and the emulator give the same bits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.protocol import Device
from executor.launch.launch import LaunchRecord
from executor.model.decoder import Decoder
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from tests.executor.model.test_decoder import MIXED, POSITIONS, buffers
from tests.synthetic import write_model

pytestmark = pytest.mark.gpu

PRECISIONS = ("accurate", "fast")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of Llama-3.2-1B, with a small vocabulary."""
    shape = {"hidden": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "ff": 8192, "vocab": 4096, "layers": 2}
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "llama", MIXED, context=128, rope_base=5e5, rope_freqs=True, **shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_replay_leaves_every_buffer_as_the_eager_step_does(precision: str, path: Path, gpu: Device) -> None:
    models = [LanguageModel.load(path, gpu, context=POSITIONS, profile=GpuProfile(precision)) for _ in range(2)]
    eager, replayed = (model.decoder for model in models)
    eager.launcher.observers.append(lambda record: None)
    for decoder in (eager, replayed):
        for layer in decoder.cache.layers:
            layer.keys.fill(0)
            layer.values.fill(0)
    tokens = []
    for position in range(POSITIONS):
        for decoder in (eager, replayed):
            decoder.step(17 if position == 0 else None)
        left, right = buffers(eager), buffers(replayed)
        for name in left:
            np.testing.assert_array_equal(left[name].view(np.uint8), right[name].view(np.uint8), err_msg=name)
        tokens.append(replayed.argmax())
    assert len(set(tokens)) > 3
    for model in models:
        model.close()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_gpu_has_the_bits_of_the_emulator(precision: str, path: Path, gpu: Device) -> None:
    tokens = [1, 2047, 8]
    with LanguageModel.load(path, gpu, context=16, profile=GpuProfile(precision)) as model:
        logits = model.logits(tokens)
        flagged = model.decoder.flagged
    with open_device("emulator") as emulator:
        model = LanguageModel.load(path, emulator, context=16, profile=GpuProfile(precision))
        assert model.decoder.flagged == flagged
        np.testing.assert_array_equal(model.logits(tokens).view(np.uint32), logits.view(np.uint32))


def test_the_driver_has_the_nodes_that_were_recorded(path: Path, gpu: Device) -> None:
    seen: list[LaunchRecord] = []
    with LanguageModel.load(path, gpu, context=16) as model:
        model.decoder.launcher.observers.append(seen.append)
        model.decoder.step(5)
        model.decoder.launcher.observers.clear()
        captured = model.decoder.graph().records
        assert [(r.kernel, r.grid, r.block) for r in captured] == [(r.kernel, r.grid, r.block) for r in seen]
        graph = gpu.make_graph([plan.node(()) for plan in model.decoder.prepare().whole])
        assert graph.nodes() == [(r.grid, r.block) for r in seen]
        gpu.free_graph(graph)


def test_a_greedy_step_allocates_nothing_and_waits_once(path: Path, gpu: Device) -> None:
    with LanguageModel.load(path, gpu, context=64) as model:
        model.generate([1, 2, 3], max_tokens=4, sampler=Sampler())
        marks: list[tuple[int, int]] = []
        model.generate(
            [1, 2, 3], max_tokens=20, sampler=Sampler(), on_token=lambda _: marks.append((gpu.allocations.mark(), gpu.waits))
        )
    assert {(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(marks)} == {(0, 1)}


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_k": 500, "top_p": 0.95, "min_p": 0.001, "seed": 1}])
def test_steps_that_run_ahead_give_the_answers_of_those_that_wait(
    path: Path, gpu: Device, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """And of tokens that the host draws."""

    def answers() -> list[object]:
        with LanguageModel.load(path, gpu, context=64) as model:
            said: list[object] = []
            for prompt in ([1, 2, 3], [4, 5]):
                made = model.generate(prompt, max_tokens=100, sampler=Sampler(**settings), stop_tokens=())
                said.append((made.tokens, made.stopped, model.decoder.logits().tobytes()))
                end = {made.tokens[10]}
                made = model.generate(prompt, max_tokens=100, sampler=Sampler(**settings), stop_tokens=end)
                said.append((made.tokens, made.stopped, model.decoder.argmax(), model.decoder.logits().tobytes()))
            return said

    ahead = answers()
    monkeypatch.setattr(Decoder, "run_ahead", lambda self: None)
    assert answers() == ahead
    monkeypatch.setattr(Decoder, "can_draw", property(lambda self: False))
    assert answers() == ahead
