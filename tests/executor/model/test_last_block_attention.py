"""A profile whose rows attend in one launch each: engines give the bits of two launches, `generate` agrees with itself in every
way that it runs, and with float64; counters are zeros after a step that failed, too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.choice import attention as choice
from executor.choice.attention import choose_attention
from executor.choice.choice import GpuProfile
from executor.choice.table import TuningEntry, TuningTable
from executor.device.dry_run import DryRunMemory
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from executor.gguf.gguf_file import GgufFile
from executor.launch.launch import LaunchRecord
from executor.layers import paged_attention as layers
from executor.measure.profiler import TileProfiler
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.paged_cache import as_pages
from executor.memory.weights import load_weights
from executor.memory.workspace import Workspace
from executor.model.decoder import Decoder
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.model_file import read_spec
from executor.model.step import Row
from executor.model.step_graph import ModelGraph
from executor.model.step_launches import StepBody, StepModel, rows_attention
from executor.model.tensors import expected_tensors
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.target import Target
from tests.reference_model import ReferenceModel
from tests.switched import switched
from tests.synthetic import Q, write_model

CONTEXT, SHORT, LENGTH = 128, 32, 37
TOKENS = [3 + 7 * at % 200 for at in range(LENGTH)]
LAST_BLOCK, PLAIN = GpuProfile().with_rules("last_block_reduction"), GpuProfile()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "qwen3", Q.Q4_K, layers=2, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT)


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a context that the emulator is done with soon has several."""
    monkeypatch.setattr(choice, "TOKEN_SHORT", SHORT)
    monkeypatch.setattr(choice, "TOKEN_LEAST", 32)
    monkeypatch.setattr(layers, "PagedAttention", partial(PagedAttention, least=32))


@pytest.fixture
def model(path: Path, device: Device) -> Iterator[LanguageModel]:
    with LanguageModel.load(path, device, context=CONTEXT, profile=LAST_BLOCK) as loaded:
        yield loaded


def decoded(decoder: Decoder, profiler: TileProfiler | None = None) -> NDArray[np.float32]:
    """Logits of the positions about the edges of parts."""
    decoder.reset()
    for token in TOKENS[: SHORT - 2]:
        decoder.step(token, head=False)
    found = []
    decoder.profiler = profiler
    for token in TOKENS[SHORT - 2 :]:
        decoder.step(token)
        found.append(decoder.logits())
    decoder.profiler = None
    return np.array(found)


def counters(decoder: Decoder) -> list[NDArray[np.uint32]]:
    calls = [call for call in decoder.prepare().launches.calls if call.place.operation == "attention"]
    return [call.arguments["counters"].to_numpy() for call in calls]


def test_a_sequence_is_the_same_eager_as_a_graph_profiled_and_with_rows_in_two_launches(
    path: Path, model: LanguageModel
) -> None:
    decoder = model.decoder
    replayed = decoded(decoder)
    assert not np.any(counters(decoder))
    decoder.launcher.observers.append(lambda record: None)
    assert decoded(decoder).tobytes() == replayed.tobytes()
    decoder.launcher.observers.clear()
    assert decoded(decoder, TileProfiler(model.device)).tobytes() == replayed.tobytes()
    decoder.profile = PLAIN
    assert decoded(decoder).tobytes() == replayed.tobytes()
    exact = ReferenceModel(path).logits(TOKENS)[SHORT - 2 :]
    assert np.abs(replayed - exact).max() <= 1e-4 * exact.std()


def test_rows_of_an_engine_have_the_bits_of_two_launches(model: LanguageModel) -> None:
    engine = Engine(model.decoder, slots=2, rows=SHORT)
    rows = [Row(0, token, at, scored=False) for at, token in enumerate(TOKENS[:SHORT])]
    found, kernels = [], []
    for slot in (0, 1):
        engine.set_table(slot, range(slot, engine.pages, 2))
    model.decoder.profile = PLAIN
    engine.step(rows)
    for model.decoder.profile in (PLAIN, LAST_BLOCK):
        scores = engine.step([Row(0, TOKENS[SHORT], SHORT, True), Row(1, 5, 0, True)])
        found.append([scores.logits(index).tobytes() for index in (0, 1)])
        kernels.append([call.kernel.name for call in engine.steps.calls(2) if call.place.operation.startswith("attention")])
    engine.free()
    assert found[0] == found[1]
    assert kernels == [
        ["paged_attention", "paged_attention_reduce_digits"] * 2,
        ["paged_attention_merged_digits"] * 2,
    ]


@pytest.mark.parametrize(
    ("kv_heads", "last_block", "kernels"),
    [
        (1, True, ["paged_attention_merged_halves"]),
        (2, True, ["paged_attention_merged", "pack_halves"]),  # two heads of 64 fill no window
        (1, False, ["paged_attention", "paged_attention_reduce", "pack_halves"]),
    ],
)
def test_rows_are_packed_as_f16_split_by_the_launch_that_attends(
    kv_heads: int, last_block: bool, kernels: list[str], tmp_path: Path, device: Device
) -> None:
    path = write_model(
        tmp_path / "m.gguf", "llama", Q.Q4_K, layers=1, hidden=256, heads=4, kv_heads=kv_heads, ff=256, context=64
    )
    entry = TuningEntry("accurate", "q4k", 256, 256, "half_mma_q4k_gemm", {"parts": 2, "split": 1}, 1e-6, error=1e-7, rows=2)
    tuned = TuningTable("a table", GpuModel.of(device), (entry,))
    profile = switched(GpuProfile(tables=(tuned,)), last_block_reduction=last_block)
    with GgufFile.open(path) as file:
        spec, memory = read_spec(file), DryRunMemory()
        weights = load_weights(memory, file, list(expected_tensors(spec)))
        cache = KvCache(memory, 1, kv_heads, spec.layer.head_dim, 64)
        page, table = (
            GpuBuffer.from_numpy(memory, np.zeros(shape, kind)) for shape, kind in (((1, 1), "u4"), ((64, 32, 2), "f4"))
        )
        attention = rows_attention(spec, profile, device.target, "f32")
        model = StepModel(ModelGraph(spec, weights, profile), as_pages(cache, page), table, attention)
        calls = StepBody.build(model, Workspace(memory), rows=2, lone=2).calls
    first = next(at for at, call in enumerate(calls) if call.place.operation.startswith("attention"))
    assert [call.kernel.name for call in calls[first : first + len(kernels)]] == kernels


def test_a_step_that_fails_half_way_leaves_counters_zeros(model: LanguageModel) -> None:
    decoder = model.decoder
    wanted = decoded(decoder)[-1]
    buffer = next(call.arguments["counters"] for call in decoder.prepare().launches.calls if "counters" in call.arguments)

    def interrupt(record: LaunchRecord) -> None:
        if str(record.place) == "layer 1 attention":
            buffer.upload(np.ones(buffer.shape, np.uint32))  # as blocks leave them that were not the last
            raise KeyboardInterrupt

    decoder.launcher.observers.append(interrupt)
    decoder.rewind(TOKENS[:-1])
    with pytest.raises(KeyboardInterrupt):
        decoder.step(TOKENS[-1])
    decoder.launcher.observers.clear()
    assert not buffer.to_numpy().any()
    decoder.step(TOKENS[-1])
    assert decoder.logits().tobytes() == wanted.tobytes()


def test_what_attends_is_said_with_its_reason() -> None:
    chosen = partial(choose_attention, heads=32, kv_heads=8, head_dim=128, kv_type="f32")
    said = [str(chosen(profile, Target(sm))) for profile, sm in ((PLAIN, 90), (LAST_BLOCK, 90), (LAST_BLOCK, 75))]
    assert [text.split(" (")[0].split("else ")[-1] for text in said] == ["paged_attention", *["paged_attention_merged"] * 2]
