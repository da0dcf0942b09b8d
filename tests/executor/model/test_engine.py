"""Steps of many rows: a row has the bits of its lone decode whatever else is in the step, and logits are those of float64."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from executor.launch.graph import LaunchGraph
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.row_steps import GraphSize, StepScores, lone_rows
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from tests.executor.model.mixture import MIXED_VARIANTS, RECORDED, digest, mixed_logits
from tests.executor.model.variants import TOKENS, VARIANTS, Variant
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

MIXED = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q8_0}
CONTEXT = 128

# What a smaller cache may cost. Keys and values are off by half a step of theirs: in f16 2^-12 of themselves, in q8_0 1/254 of
# the peak of a block, some three times their rms. Four layers add theirs; the largest of a thousand is four times the rms.
F16 = 4 * 4 * 2.0**-12
Q8_0 = 4 * 4 * 3 / 254


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "qwen3", MIXED, layers=2, hidden=256, heads=4, kv_heads=2, ff=512, context=CONTEXT)


@pytest.fixture(scope="module")
def model(path: Path, device: Device) -> Iterator[LanguageModel]:
    with LanguageModel.load(path, device, context=CONTEXT, profile=GpuProfile()) as loaded:
        yield loaded


@pytest.fixture
def engine(model: LanguageModel) -> Iterator[Engine]:
    made = Engine(model.decoder, slots=4, rows=16)
    for slot in range(4):
        made.set_table(slot, range(slot, made.pages, 4))  # pages far from each other
    yield made
    made.free()


def rows_of(slot: int, tokens: Sequence[int], start: int = 0, *, scored: bool = True) -> list[Row]:
    return [Row(slot, token, position, scored) for position, token in enumerate(tokens, start)]


def logits(engine: Engine, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
    scores = engine.step(rows)
    return [scores.logits(index) for index in range(sum(row.scored for row in rows))]


def one_by_one(engine: Engine, slot: int, tokens: Sequence[int]) -> NDArray[np.float32]:
    return np.array([logits(engine, [row])[0] for row in rows_of(slot, tokens)])


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_prompt_in_chunks_has_the_bits_of_its_tokens_one_by_one(engine: Engine, size: int) -> None:
    lone = one_by_one(engine, 0, TOKENS)
    chunks = [TOKENS[start : start + size] for start in range(0, len(TOKENS), size)]
    together = [row for at, chunk in enumerate(chunks) for row in logits(engine, rows_of(1, chunk, at * size))]
    assert np.array_equal(np.array(together).view(np.uint32), lone.view(np.uint32))


def test_a_row_has_the_bits_of_its_lone_decode_beside_other_sequences_and_a_prompt(engine: Engine) -> None:
    lone = one_by_one(engine, 0, TOKENS)
    logits(engine, rows_of(1, TOKENS[:5]))
    logits(engine, rows_of(2, [9, 9]))
    mixture = [*rows_of(3, [4, 4, 4, 4], scored=False), *rows_of(1, TOKENS[5:6], 5), *rows_of(2, [300], 2)]
    assert np.array_equal(logits(engine, mixture)[0].view(np.uint32), lone[5].view(np.uint32))


def test_logits_are_those_of_decoding_without_pages_within_the_rounding_of_attention(
    engine: Engine, model: LanguageModel
) -> None:
    contiguous = model.logits(TOKENS)
    paged = np.array(logits(engine, rows_of(0, TOKENS)))
    assert np.abs(paged - contiguous).max() <= 1e-5 * contiguous.std()


def test_the_likeliest_tokens_of_the_scored_rows_are_found_on_the_device(engine: Engine) -> None:
    rows = [Row(0, token, position, position in (2, 3, 6)) for position, token in enumerate(TOKENS)]
    scores = engine.step(rows)
    assert scores.chosen() == [int(np.argmax(scores.logits(index))) for index in range(3)]


def test_sequences_that_share_a_page_see_the_same_keys(engine: Engine) -> None:
    start = [token % 300 for token in range(40)]
    lone = one_by_one(engine, 0, [*start, 7])[-1]
    engine.set_table(1, [0, 5])  # the first page of slot 0, and one of its own
    for row in rows_of(1, start[32:], 32):
        engine.step([row])
    assert np.array_equal(logits(engine, rows_of(1, [7], 40))[0].view(np.uint32), lone.view(np.uint32))


def test_steps_of_one_size_are_one_graph(engine: Engine) -> None:
    for position in range(4):
        engine.step([Row(slot, 5, position, True) for slot in range(3)])
    assert engine.steps.captures == 1
    engine.step([Row(slot, 5, 4, True) for slot in range(4)])
    assert engine.steps.captures == 1
    engine.step([Row(0, 5, 5, True)])
    assert engine.steps.captures == 2


def test_another_precision_counts_from_the_next_step_on(engine: Engine, model: LanguageModel) -> None:
    accurate = logits(engine, rows_of(0, TOKENS))
    model.decoder.profile = GpuProfile("fast")
    try:
        fast = logits(engine, rows_of(1, TOKENS))
    finally:
        model.decoder.profile = GpuProfile()
    assert not np.array_equal(fast, accurate)
    assert np.array_equal(logits(engine, rows_of(2, TOKENS)), accurate)


@pytest.mark.parametrize(
    ("name", "parameters", "packing", "matrices"),
    [
        ("mma", {"digits": 3}, "batched_rmsnorm_digits", ("attn", "ffn")),
        ("half_mma", {"parts": 2, "split": 2}, "batched_rmsnorm_halves", ("attn_q", "attn_v", "attn_out")),  # attn_k: digits
    ],
    ids=["digits", "halves"],
)
def test_tensor_cores_that_were_measured_to_be_faster_for_several_rows_are_as_accurate(
    name: str,
    parameters: dict[str, int],
    packing: str,
    matrices: tuple[str, ...],
    engine: Engine,
    model: LanguageModel,
    path: Path,
) -> None:
    entries = tuple(
        TuningEntry("accurate", w.format.id, w.k, w.n, f"{name}_{w.format.id}_gemm", parameters, 1e-6, error=1e-7, rows=16)
        for w in model.decoder.weights.values()
        if w.format.packed_width and any(matrix in w.name for matrix in matrices)
    )
    table = TuningTable("a table", GpuModel.of(model.device), tuple(dict.fromkeys(entries)))
    model.decoder.profile = GpuProfile(tables=(table,))
    try:
        together = np.array(logits(engine, rows_of(0, TOKENS)))
        calls = engine.steps.calls(len(TOKENS))
        model.decoder.profile = GpuProfile(tables=(table,)).with_rules("batch_invariant")
        alike = np.array(logits(engine, rows_of(1, TOKENS)))
    finally:
        model.decoder.profile = GpuProfile()
    exact = ReferenceModel(path).logits(list(TOKENS))
    assert {f"{name}_q4k_gemm", f"{name}_q6k_gemm", packing} <= {call.kernel.name for call in calls}
    assert any(call.place.operation == "attn_output_residual" for call in calls) == (name == "mma")
    assert np.abs(together - exact).max() <= 1e-4 * exact.std()
    assert np.array_equal(alike.view(np.uint32), one_by_one(engine, 2, TOKENS).view(np.uint32))


def test_products_by_warpgroups_that_were_measured_with_other_settings_each_share_launches(
    engine: Engine, model: LanguageModel, path: Path
) -> None:
    settings = {
        "attn_q": {"stages": 2, "warpgroups": 2, "columns": 16, "unpacked": 2},
        "attn_k": {"stages": 2, "warpgroups": 1, "columns": 8, "unpacked": 4},
        "attn_v": {"stages": 2, "warpgroups": 1, "columns": 8, "unpacked": 2},
        "ffn_up": {"stages": 2, "warpgroups": 1, "columns": 8, "unpacked": 4},
    }
    measured = [(w, settings[role]) for w in model.decoder.weights.values() for role in settings if f".0.{role}." in w.name]
    entries = tuple(
        TuningEntry("accurate", w.format.id, w.k, w.n, f"wgmma_{w.format.id}_gemm", parameters, 1e-6, error=1e-7, rows=4)
        for w, parameters in measured
    )
    model.decoder.profile = GpuProfile(tables=(TuningTable("a table", GpuModel.of(model.device), entries),))
    try:
        scores = np.array(logits(engine, rows_of(0, TOKENS[:3])))
        calls = engine.steps.calls(3)
    finally:
        model.decoder.profile = GpuProfile()
    kernels = {call.place.operation: call.kernel for call in calls if call.kernel.name.startswith("wgmma")}
    assert kernels.keys() == {"attn_q+attn_k", "attn_v", "attn_output", "ffn_gate+ffn_up"}  # attn_v has another format
    assert kernels["attn_q+attn_k"].parameters().items() >= {"n": 256, "n2": 128, **settings["attn_k"]}.items()
    exact = ReferenceModel(path).logits(list(TOKENS[:3]))
    assert np.abs(scores - exact).max() <= 1e-4 * exact.std()


def test_products_whose_blocks_share_k_have_memory_of_their_own(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3", Q.Q4_K, layers=1, hidden=512, heads=4, kv_heads=2, ff=512, context=32)
    parameters = {"parts": 2, "split": 1, "slices": 2}
    entry = TuningEntry("accurate", "q4k", 512, 512, "stationary_q4k_gemm", parameters, 1e-6, error=1e-7, rows=4)
    table = TuningTable("a table", GpuModel.of(device), (entry,))
    with LanguageModel.load(path, device, context=32, profile=GpuProfile(tables=(table,))) as model:
        engine = Engine(model.decoder, slots=2, rows=4)
        for slot in (0, 1):
            engine.set_table(slot, range(slot, engine.pages, 2))
        scores = [
            np.array(logits(engine, rows_of(slot, TOKENS[:4]))) for slot in (0, 1)
        ]  # the second replays the first's graph
        shared = [call for call in engine.steps.calls(4) if call.kernel.name == "stationary_q4k_gemm"]

        def interrupted(graph: LaunchGraph) -> None:
            for call in shared:
                call.arguments["counters"].fill(1)  # as launches leave them that are thrown away half done
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LaunchGraph, "replay", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.step(rows_of(0, TOKENS[:4]))
        scores.append(np.array(logits(engine, rows_of(0, TOKENS[:4]))))
        engine.free()
    exact = ReferenceModel(path).logits(list(TOKENS[:4]))
    assert all(np.abs(one - exact).max() <= 1e-4 * exact.std() for one in scores)
    assert len({one.tobytes() for one in scores}) == 1
    counters = {call.place.operation: call.arguments["counters"].pointer for call in shared}
    assert counters.keys() == {"attn_q", "attn_output", "ffn_gate+ffn_up", "ffn_down"}
    assert len(set(counters.values())) == len(counters)  # operations of a layer may run at the same time


def test_a_prompt_in_tiles_beside_other_sequences_then_decoding_is_decoding_token_by_token(
    engine: Engine, model: LanguageModel
) -> None:
    lone = one_by_one(engine, 0, TOKENS)
    model.decoder.profile = GpuProfile(tile_run=3)
    try:
        prompt = logits(engine, rows_of(1, TOKENS[:-2]))
        mixture = logits(engine, [*rows_of(1, TOKENS[-2:-1], len(TOKENS) - 2), *rows_of(2, TOKENS[:3])])
        last = logits(engine, rows_of(1, TOKENS[-1:], len(TOKENS) - 1))
        kernels = [{call.kernel.name for call in engine.steps.calls(*size)} for size in ((8, 0), (4, 1), (1, 1))]
    finally:
        model.decoder.profile = GpuProfile()
    assert np.abs(np.array([*prompt, mixture[0], *last]) - lone).max() <= 1e-5 * lone.std()
    assert np.abs(np.array(mixture[1:]) - lone[:3]).max() <= 1e-5 * lone.std()
    attention = {"flash_attention", "paged_attention"}
    assert [names & attention for names in kernels] == [{"flash_attention"}, attention, {"paged_attention"}]


def test_beside_many_lone_rows_those_of_tiles_attend_alone_too(engine: Engine, model: LanguageModel) -> None:
    """A step of 8 rows has room for 8 lone ones, or for 4."""
    lone = one_by_one(engine, 0, TOKENS)
    runs = [(0, 2), (1, 2), (3, 1), (2, 3)]
    model.decoder.profile = GpuProfile(tile_run=3)
    try:
        found = logits(engine, [row for slot, count in runs for row in rows_of(slot, TOKENS[:count])])
    finally:
        model.decoder.profile = GpuProfile()
    expected = np.concatenate([lone[:count] for _, count in runs])
    assert np.abs(np.array(found) - expected).max() <= 1e-5 * lone.std()


def test_steps_of_as_many_rows_share_what_does_not_depend_on_who_attends_alone(engine: Engine, model: LanguageModel) -> None:
    model.decoder.profile = GpuProfile(tile_run=3)
    found = []
    try:
        for alone in (0, 1, 3, 0):
            others = [Row(slot, TOKENS[0], 0, False) for slot in range(alone)]
            found.append(
                logits(engine, [*others, *rows_of(3, TOKENS[:5]), *rows_of(3, TOKENS[5 : 8 - alone], 5, scored=False)])
            )
        bodies, heads = engine.steps._bodies, engine.steps._heads.values()
    finally:
        model.decoder.profile = GpuProfile()
    assert sorted(bodies) == [(8, 0), (8, 1), (8, 4)]
    assert len({body.launches.activations.hidden.pointer for body in bodies.values()}) == 1
    assert len({head.launches.logits.pointer for head in heads}) == 1 < len(heads)
    assert np.array_equal(found[0], found[3])
    assert max(np.abs(np.array(one) - found[0]).max() for one in found) <= 1e-5 * np.std(found[0])


def test_how_rows_attend_is_said_with_its_reason(engine: Engine, model: LanguageModel) -> None:
    assert engine.attention.parts == 2
    assert model.decoder.attention.reason == "accurate: 32 rows of a sequence or more in tiles of 64"
    model.decoder.profile = GpuProfile("fast").with_rules("batch_invariant")
    try:
        assert engine.attention.parts == 0
        assert engine.attention.reason == "the profile is batch_invariant: a row attends as if it were alone"
    finally:
        model.decoder.profile = GpuProfile()


def test_rows_before_the_last_short_run_attend_on_their_own() -> None:
    slot, position = np.array([3, 1, 0, 0, 0, 2, 2]), np.array([9, 9, 4, 5, 6, 0, 1])
    assert [lone_rows(slot, position, least) for least in (1, 2, 3)] == [0, 2, 7]
    assert lone_rows(slot[:5], position[:5], 3) == 2


def test_scores_of_an_earlier_step_are_refused(engine: Engine) -> None:
    scores = engine.step([Row(0, 1, 0, True)])
    engine.step([Row(0, 1, 1, True)])
    with pytest.raises(ModelError, match="earlier step"):
        scores.chosen()


@pytest.mark.parametrize("sequences", [1, 3])
def test_steps_that_are_started_before_tokens_were_read_have_the_bits_of_those_that_wait(
    engine: Engine, sequences: int
) -> None:
    """Over the end of a page."""

    def start() -> StepScores:
        return engine.step([Row(slot, 5 + slot, 0, True) for slot in range(sequences)])

    tokens, waiting = list[list[int]](), start()
    for step in range(1, 36):
        tokens.append(waiting.chosen())
        waiting = engine.step([Row(slot, token, step, True) for slot, token in enumerate(tokens[-1])])
    expected = [waiting.logits(slot) for slot in range(sequences)]
    for layer in engine.cache.layers:
        for pages in layer.arrays.values():
            pages.fill(0xFF)
    seen, scores = list[list[int]](), start()
    for _ in range(1, 36):
        ahead = engine.step_ahead()
        assert ahead is not None
        seen.append(scores.chosen())
        scores = ahead
    assert seen == tokens
    assert np.array_equal(np.array([scores.logits(slot) for slot in range(sequences)]), np.array(expected))
    assert engine.steps.captures == 1


def test_a_step_ahead_follows_one_whose_rows_all_go_on(engine: Engine, model: LanguageModel) -> None:
    follows = "whose rows were all scored, each of another slot"
    with pytest.raises(ArgumentError, match=follows):
        engine.step_ahead()
    for rows in ([Row(0, 1, 0, False)], [Row(0, 1, 0, True), Row(0, 2, 1, True)]):
        engine.step(rows)
        with pytest.raises(ArgumentError, match=follows):
            engine.step_ahead()
    engine.set_table(1, [9])
    engine.step([Row(1, 3, engine.page_len - 1, True)])
    with pytest.raises(ArgumentError, match=f"row 0: slot 1 has no page for position {engine.page_len}"):
        engine.step_ahead()
    engine.step([Row(0, 1, 0, True)])
    model.decoder.profile = GpuProfile().with_rules("batch_invariant")
    try:
        with pytest.raises(ArgumentError, match=follows):
            engine.step_ahead()
    finally:
        model.decoder.profile = GpuProfile()
    scores = engine.step([Row(0, 1, 0, True)])
    engine.launcher.observers.append(lambda record: None)
    assert engine.step_ahead() is None
    assert scores.chosen() == [int(np.argmax(scores.logits(0)))]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "0 rows; allowed: 1 to 16"),
        ([Row(0, 1, 0, True)] * 17, "17 rows; allowed: 1 to 16"),
        ([Row(4, 1, 0, True)], "the slot of row 0"),
        ([Row(0, 1, 0, True), Row(0, 512, 1, True)], "token id 512 is out of range"),
        ([Row(0, 1, CONTEXT, True)], "the position of row 0"),
        ([Row(3, 1, 0, True)], "row 0: slot 3 has no page for position 0"),
    ],
)
def test_rows_that_cannot_run_are_refused_before_anything_runs(engine: Engine, rows: list[Row], message: str) -> None:
    engine.set_table(3, [])
    with pytest.raises(ArgumentError, match=message):
        engine.step(rows)
    assert engine.steps.count == 0


def test_an_engine_gives_its_memory_back(model: LanguageModel, device: Device) -> None:
    before = device.memory().allocated
    engine = Engine(model.decoder, slots=2, rows=4)
    engine.set_table(0, [0])
    engine.step([Row(0, 1, 0, True)])
    engine.free()
    engine.free()
    assert device.memory().allocated == before


@pytest.mark.parametrize(
    ("variant", "kv_type", "error"),
    [*((variant, "f32", 1e-4) for variant in MIXED_VARIANTS), (VARIANTS[-1], "f16", F16), (VARIANTS[-1], "q8_0", Q8_0)],
    ids=str,
)
def test_mixed_steps_have_the_logits_of_float64_and_the_recorded_bits(
    variant: Variant, kv_type: str, error: float, device: Device, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """error: the largest allowed, of the logits' standard deviation."""
    path = variant.write(tmp_path)
    logits = mixed_logits(path, device, kv_type)
    exact = ReferenceModel(path).logits(list(TOKENS))[: len(logits)]
    assert np.abs(logits - exact).max() <= error * exact.std()
    name = variant.name if kv_type == "f32" else f"{variant.name}, {kv_type}"
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if pytestconfig.getoption("--update-golden"):
        RECORDED.write_text(json.dumps(recorded | {name: digest(logits)}, indent=1, sort_keys=True) + "\n")
    else:
        assert digest(logits) == recorded[name]


@pytest.mark.parametrize(
    ("rows", "scored", "least", "lone", "size"),
    [
        (3, 0, 1, None, (4, 0, False, 4)),
        (3, 3, 8, None, (8, 8, False, 8)),
        (3, 3, 1, None, (4, 4, False, 4)),
        (5, 4, 1, 0, (8, 4, True, 0)),
        (8, 7, 1, 1, (8, 8, True, 1)),
        (9, 0, 1, 5, (16, 0, False, 8)),
        (64, 5, 1, 3, (64, 16, True, 4)),
        (200, 70, 1, 65, (256, 256, True, 128)),  # the others are in tiles
        (200, 0, 1, 129, (256, 0, False, 256)),  # the others, too
        (9, 0, 1, 9, (16, 0, False, 16)),
    ],
)
def test_the_size_of_a_step(rows: int, scored: int, least: int, lone: int | None, size: tuple[int, int, bool, int]) -> None:
    assert GraphSize.of(rows, scored, least, lone) == size
