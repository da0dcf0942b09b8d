"""A decode step as one graph: the launches and the bits of the eager step, made anew when what it was captured from changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.launch.launch import LaunchRecord
from executor.memory.buffers import GpuBuffer
from executor.model.decoder import Decoder
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from tests.synthetic import Q, write_model

MIXED = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q8_0}
POSITIONS = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "qwen3", MIXED, layers=2, hidden=256, heads=4, kv_heads=2, ff=512, context=128)


@pytest.fixture
def model(path: Path, device: Device) -> Iterator[LanguageModel]:
    with LanguageModel.load(path, device, context=POSITIONS, profile=GpuProfile()) as loaded:
        yield loaded


def buffers(decoder: Decoder) -> dict[str, Any]:
    """What every buffer of a step holds, by the launch and the argument that it is."""
    return {
        f"{plan.place} {name}": value.to_numpy()
        for plan in decoder.prepare().whole
        for name, value in plan.arguments.items()
        if isinstance(value, GpuBuffer) and name != "w"
    }


@pytest.mark.slow
def test_replay_leaves_every_buffer_as_the_eager_step_does_for_64_positions(path: Path, device: Device) -> None:
    with (
        LanguageModel.load(path, device, context=POSITIONS, profile=GpuProfile()) as eager,
        LanguageModel.load(path, device, context=POSITIONS, profile=GpuProfile()) as replayed,
    ):
        eager.decoder.launcher.observers.append(lambda record: None)
        tokens: list[int] = []
        for decoder in (eager.decoder, replayed.decoder):
            for layer in decoder.cache.layers:  # what is not written yet is compared, too
                layer.keys.fill(0)
                layer.values.fill(0)
        for position in range(POSITIONS):
            for decoder in (eager.decoder, replayed.decoder):
                decoder.step(17 if position == 0 else None)
            left, right = buffers(eager.decoder), buffers(replayed.decoder)
            assert left.keys() == right.keys()
            for name in left:
                np.testing.assert_array_equal(left[name].view(np.uint8), right[name].view(np.uint8), err_msg=name)
            tokens.append(replayed.decoder.argmax())
        assert (eager.decoder.captures, replayed.decoder.captures) == (0, 1)
        assert len(set(tokens)) > 3  # a step that did nothing would pass, too


def test_the_graph_holds_the_launches_of_the_eager_step(model: LanguageModel) -> None:
    seen: list[LaunchRecord] = []
    model.decoder.launcher.observers.append(seen.append)
    model.decoder.step(5)
    model.decoder.launcher.observers.clear()
    captured = model.decoder.graph().records
    assert [(r.place, r.kernel, r.grid, r.block) for r in captured] == [(r.place, r.kernel, r.grid, r.block) for r in seen]
    for left, right in zip(captured, seen, strict=True):
        assert dict(left.arguments) == dict(right.arguments)


def test_a_greedy_step_allocates_nothing_and_waits_once(model: LanguageModel, device: Device) -> None:
    model.generate([1, 2, 3], max_tokens=4, sampler=Sampler())
    marks: list[tuple[int, int]] = []
    model.generate(
        [1, 2, 3], max_tokens=12, sampler=Sampler(), on_token=lambda _: marks.append((device.allocations.mark(), device.waits))
    )
    assert [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(marks)] == [(0, 1)] * 11


def test_nothing_is_loaded_when_a_graph_is_captured(model: LanguageModel) -> None:
    before = replace(model.modules.counts)
    model.decoder.step(3)
    assert model.decoder.captures == 1
    assert model.modules.counts == before


def grow_cache(decoder: Decoder) -> None:
    decoder.cache.grow(96)


def grow_workspace(decoder: Decoder) -> None:
    decoder.workspace.buffer("normed", (4096,))


def change_profile(decoder: Decoder) -> None:
    decoder.profile = GpuProfile(gemv={"q4k": "q4k_gemv"})


@pytest.mark.parametrize("change", [grow_cache, grow_workspace, change_profile])
def test_a_graph_is_captured_anew_by_itself(change: Callable[[Decoder], None], path: Path, model: LanguageModel) -> None:
    expected = model.logits([5, 6, 7, 8])
    model.decoder.reset()
    for token in (5, 6):
        model.decoder.step(token)
    assert model.decoder.captures == 1
    change(model.decoder)
    for token in (7, 8):
        model.decoder.step(token)
    assert model.decoder.captures == 2
    close = {"atol": 1e-4 * expected.std(), "rtol": 0} if change is change_profile else {"atol": 0, "rtol": 0}
    np.testing.assert_allclose(model.decoder.logits(), expected[3], **close)


@pytest.mark.slow
def test_another_precision_in_the_midst_of_a_sequence_goes_on_with_it(path: Path, device: Device) -> None:
    """Choosing kernels of that precision runs tokens to look for outliers; the sequence must not feel it."""
    with LanguageModel.load(path, device, context=POSITIONS, profile=GpuProfile()) as model:
        decoder = model.decoder
        exact = model.logits([5, 6, 7, 8])
        decoder.reset()
        for token in (5, 6, 7):
            decoder.step(token)
        keys = decoder.cache.layers[1].keys.to_numpy()[:, :3]
        decoder.profile = GpuProfile("fast")
        decoder.prepare()
        assert decoder.position == 3
        np.testing.assert_array_equal(decoder.cache.layers[1].keys.to_numpy()[:, :3], keys)
        np.testing.assert_array_equal(decoder.logits(), exact[2])
        assert decoder.argmax() == int(exact[2].argmax())
        decoder.step(8)
        # digits of 8 bits: a relative error of 1e-2 at the most in each of 14 products of a token
        np.testing.assert_allclose(decoder.logits(), exact[3], rtol=0, atol=0.15 * exact[3].std())


def test_a_step_that_fails_takes_no_position_and_can_be_done_again(model: LanguageModel) -> None:
    decoder, expected = model.decoder, model.logits([5, 6, 7])

    def interrupt(record: LaunchRecord) -> None:
        if str(record.place) == "layer 1 attention":
            raise KeyboardInterrupt

    decoder.reset()
    decoder.step(5)
    decoder.launcher.observers.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        decoder.step(6)
    decoder.launcher.observers.clear()
    assert decoder.position == 1
    for token in (6, 7):
        decoder.step(token)
    np.testing.assert_array_equal(decoder.logits(), expected[2])


def test_a_replay_that_the_decoder_did_not_start_does_not_move_its_sequence(model: LanguageModel) -> None:
    decoder, expected = model.decoder, model.logits([5, 6])
    decoder.reset()
    decoder.step(5)
    decoder.graph().replay()  # the device now stands one further
    decoder.step(6)
    np.testing.assert_array_equal(decoder.logits(), expected[1])


def nothing(decoder: Decoder) -> None:
    decoder.reset()


def a_step_without_head(decoder: Decoder) -> None:
    decoder.step(5, head=False)


def a_truncation(decoder: Decoder) -> None:
    decoder.step(5)
    decoder.step()
    decoder.cache.truncate(1)


def a_replay_of_somebody_else(decoder: Decoder) -> None:
    decoder.step(5)
    decoder.graph().replay()


@pytest.mark.parametrize("after", [nothing, a_step_without_head, a_truncation, a_replay_of_somebody_else])
def test_a_likeliest_token_that_nobody_has_found_is_asked_for(after: Callable[[Decoder], None], model: LanguageModel) -> None:
    after(model.decoder)
    position = model.decoder.position
    with pytest.raises(ArgumentError, match=f"the likeliest token for position {position}; give a token"):
        model.decoder.step()
    assert model.decoder.position == position
    model.decoder.step(5)
    model.decoder.step()


@pytest.mark.parametrize("change", [grow_cache, grow_workspace])
def test_greedy_decoding_goes_on_where_the_graph_is_captured_anew(
    change: Callable[[Decoder], None], model: LanguageModel
) -> None:
    expected = model.generate([5, 6], max_tokens=6, sampler=Sampler()).tokens
    decoder, made = model.decoder, list[int]()
    decoder.reset()
    decoder.step(5)
    for token in (6, *[None] * 5):
        if len(made) == 3:
            change(decoder)
        decoder.step(token)
        made.append(decoder.argmax())
    assert made == expected


@pytest.mark.slow
def test_a_grown_cache_holds_longer_sequences(model: LanguageModel) -> None:
    for token in range(POSITIONS):
        model.decoder.step(token)
    with pytest.raises(ArgumentError, match="context is full: 64 of 64"):
        model.decoder.step(POSITIONS)
    model.decoder.cache.grow(POSITIONS + 1)
    model.decoder.step(POSITIONS)
    grown = model.decoder.logits()
    np.testing.assert_array_equal(model.logits(range(POSITIONS + 1))[-1], grown)


def test_the_context_ends_for_a_greedy_step_too(model: LanguageModel) -> None:
    made = model.generate([1], max_tokens=1000, sampler=Sampler())
    assert made.stopped == "context"
    assert len(made.tokens) == POSITIONS


class TestOutliers:
    """The model has one massive channel, at the output of layer 1's ffn_norm."""

    @pytest.fixture
    def spiked(self, path: Path, tmp_path: Path) -> Path:
        from executor.gguf.gguf_file import GgufFile

        content = bytearray(path.read_bytes())
        with GgufFile.open(path) as file:
            at = file.tensors["blk.1.ffn_norm.weight"].offset
        content[at + 4 * 40 : at + 4 * 41] = np.float32(1000).tobytes()
        (tmp_path / "spiked.gguf").write_bytes(content)
        return tmp_path / "spiked.gguf"

    @pytest.mark.slow
    def test_only_what_reads_the_flagged_output_runs_on_an_accurate_kernel(self, spiked: Path, device: Device) -> None:
        with LanguageModel.load(spiked, device, context=32, profile=GpuProfile("fast")) as model:
            digits = {str(p.place): p.kernel.digits for p in model.decoder.prepare().whole if hasattr(p.kernel, "digits")}
            assert {place for place, count in digits.items() if count == 3} >= {"layer 1 ffn_gate", "layer 1 ffn_up"}
            assert (1, "ffn_norm") in model.decoder.flagged
            assert (0, "ffn_norm") not in model.decoder.flagged
            assert digits["layer 0 ffn_gate"] == 1

    @pytest.mark.slow
    def test_at_the_accurate_precision_the_verdicts_of_another_time_decide_nothing(self, spiked: Path, device: Device) -> None:
        one_digit = GpuProfile(gemv={"q4k": "hw_dp4a_q4k_gemv:digits=1"})
        with LanguageModel.load(spiked, device, context=32, profile=GpuProfile("fast")) as model:
            model.decoder.profile = one_digit
            changed = [plan.kernel for plan in model.decoder.prepare().whole]
        with LanguageModel.load(spiked, device, context=32, profile=one_digit) as model:
            assert [plan.kernel for plan in model.decoder.prepare().whole] == changed

    @pytest.mark.slow
    def test_a_kernel_of_one_plane_that_the_profile_names_gets_no_outlier_either(self, spiked: Path, device: Device) -> None:
        tokens, named = [9, 200, 31], {"q4k": "hw_dp4a_q4k_gemv:digits=1", "q6k": "hw_dp4a_q6k_gemv:digits=1"}
        profiles = {"exact": GpuProfile(), "fast": GpuProfile("fast"), "named": GpuProfile(gemv=named)}
        made = {}
        for name, profile in profiles.items():
            with LanguageModel.load(spiked, device, context=32, profile=profile) as model:
                made[name] = model.logits(tokens)
                flagged = model.decoder.flagged
                digits = {str(p.place): p.kernel.digits for p in model.decoder.prepare().whole if hasattr(p.kernel, "digits")}
        assert (1, "ffn_norm") in flagged
        assert (digits["layer 1 ffn_gate"], digits["layer 0 ffn_gate"]) == (3, 1)
        error = {name: np.abs(logits - made["exact"]).max() for name, logits in made.items()}
        assert 0 < error["named"] <= error["fast"]

    @pytest.mark.slow
    def test_where_no_kernel_reads_one_plane_nothing_is_looked_for(
        self, spiked: Path, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("executor.layers.outliers.OutlierWatch", None)
        plain = {format.id: f"mwv_{format.id}_gemv" for format in FORMATS.values()}
        for profile in (GpuProfile(), GpuProfile("fast", plain)):
            with LanguageModel.load(spiked, device, context=32, profile=profile) as model:
                assert model.decoder.flagged == frozenset()

    @pytest.mark.slow
    def test_routing_brings_the_logits_back(self, spiked: Path, device: Device) -> None:
        tokens = [9, 200, 31]
        with LanguageModel.load(spiked, device, context=32, profile=GpuProfile()) as model:
            exact = model.logits(tokens)
        with LanguageModel.load(spiked, device, context=32, profile=GpuProfile("fast")) as model:
            routed = model.logits(tokens)
            model.decoder.flagged = frozenset()
            unrouted = model.logits(tokens)
        assert np.abs(routed - exact).max() < 0.5 * np.abs(unrouted - exact).max()

    def test_the_verdict_is_kept_until_the_weights_change(self, path: Path, device: Device) -> None:
        with LanguageModel.load(path, device, context=32, profile=GpuProfile("fast")) as model:
            assert (1, "ffn_norm") not in model.decoder.flagged
            before = model.decoder.flagged
            gamma = model.decoder.weights["blk.1.ffn_norm.weight"].buffer
            spiked = gamma.to_numpy()
            spiked[40] = 1000
            kept = model.decoder.prepare()
            assert model.decoder.prepare() is kept
            try:
                gamma.allocation, adopted = GpuBuffer.from_numpy(device, spiked).allocation, gamma.allocation
                gamma.pointer = gamma.allocation.base
                model.decoder.weights.generation += 1
                model.decoder.step(3)
                assert model.decoder.flagged - before == {(1, "ffn_norm")}
            finally:
                gamma.allocation.device.free(gamma.allocation.base)
                gamma.allocation, gamma.pointer = adopted, adopted.base

    def test_a_calibrated_model_starts_at_position_0_and_says_the_same_each_time(self, path: Path, device: Device) -> None:
        with LanguageModel.load(path, device, context=32, profile=GpuProfile("fast")) as model:
            assert model.decoder.position == 0
            first = model.generate([1, 2], max_tokens=6, sampler=Sampler()).tokens
            assert model.generate([1, 2], max_tokens=6, sampler=Sampler()).tokens == first


def test_a_vocabulary_that_several_blocks_share_gives_the_likeliest_token_of_steps_of_one_row_and_of_several(
    device: Device, tmp_path: Path
) -> None:
    shape = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "vocab": 4100, "context": 128}
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q8_0, **shape)  # type: ignore[arg-type]  # all are ints
    with LanguageModel.load(path, device, profile=GpuProfile()) as model:
        for token in (5, 4099, 7):
            model.decoder.step(token)
            assert model.decoder.argmax() == int(model.decoder.logits().argmax())
        assert model.decoder.captures == 1
        engine = Engine(model.decoder, slots=2, rows=2)
        for slot in (0, 1):
            engine.set_table(slot, [slot])
        for position, tokens in enumerate(((5, 6), (4099, 9), (7, 7))):
            scores = engine.step([Row(slot, token, position, scored=True) for slot, token in enumerate(tokens)])
            assert scores.chosen() == [int(scores.logits(slot).argmax()) for slot in (0, 1)]
        engine.free()


def test_a_decoder_that_is_freed_twice_gives_its_memory_back_once(model: LanguageModel) -> None:
    memory = model.device.memory().allocated
    model.decoder.free()
    assert (freed := model.device.memory().allocated) < memory
    model.decoder.free()
    assert model.device.memory().allocated == freed
