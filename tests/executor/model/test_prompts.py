"""A prompt's tokens many at a time: the keys, the values and the tokens after them are those of one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.gguf.gguf_file import GgufFile
from executor.model.decoder import Decoder
from executor.model.generation import LanguageModel
from executor.model.memory_needed import memory_needed
from executor.model.prompt_chunks import chunks
from ptxgen.errors import ArgumentError
from tests.synthetic import Q, write_model

MIXED = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q8_0}
PROMPT = [(37 * token + 5) % 512 for token in range(45)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "qwen2", MIXED, layers=2, hidden=256, heads=4, kv_heads=2, ff=512, context=128)


@pytest.fixture
def model(path: Path, device: Device) -> Iterator[LanguageModel]:
    with LanguageModel.load(path, device, context=64, profile=GpuProfile()) as loaded:
        yield loaded


def keys_and_values(decoder: Decoder) -> NDArray[np.float32]:
    """f32[layers, 2, kv_heads, position, head_dim]"""
    layers = decoder.cache.layers
    return np.array([[part.to_numpy()[:, : decoder.position] for part in (one.keys, one.values)] for one in layers])


def test_a_prompt_at_once_then_decoding_is_decoding_token_by_token(model: LanguageModel) -> None:
    decoder = model.decoder
    for token in PROMPT:
        decoder.step(token)
    one_by_one, after = keys_and_values(decoder), []
    for _ in range(4):
        decoder.step()
        after.append(decoder.logits())
    decoder.reset()
    decoder.feed(PROMPT[:-1])
    decoder.step(PROMPT[-1])
    assert decoder.position == len(PROMPT)
    assert np.abs(keys_and_values(decoder) - one_by_one).max() <= 1e-5 * np.abs(one_by_one).max()
    for logits in after:
        decoder.step()
        assert np.abs(decoder.logits() - logits).max() <= 1e-5 * logits.std()


def test_a_prompt_of_45_tokens_is_steps_of_two_sizes(model: LanguageModel) -> None:
    before = model.decoder.captures
    model.decoder.feed(PROMPT)
    assert model.decoder.captures == before + 2


@pytest.mark.parametrize(
    ("length", "sizes"),
    [(0, []), (1, [1]), (8, [8]), (9, [8, 1]), (45, [32, 8, 5]), (1023, [512, 256, 128, 64, 32, 16, 8, 7]), (1024, [512, 512])],
)
def test_chunks_leave_no_rows_idle_but_in_the_last(length: int, sizes: list[int]) -> None:
    made = list(chunks(range(length), 512))
    assert [len(chunk) for chunk in made] == sizes
    assert [token for chunk in made for token in chunk] == list(range(length))


def test_the_memory_that_prompts_take_is_known_before(model: LanguageModel, path: Path, device: Device) -> None:
    decoder = model.decoder
    before = device.memory().allocated
    for count in (5, 16, 32):
        decoder.reset()
        decoder.feed(PROMPT[:count])
    taken = device.memory().allocated - before
    with GgufFile.open(path) as file:
        needed = {chunk: memory_needed(file, decoder.spec, 64, device.target, GpuProfile(), chunk=chunk) for chunk in (32, 512)}
    assert 0 <= taken - needed[32].prompts < 256 * 64  # alignment
    assert needed[512].prompts > needed[32].prompts  # with a step of 64 rows


def test_a_context_that_no_kernel_of_many_rows_takes_is_fed_token_by_token(path: Path, device: Device) -> None:
    with LanguageModel.load(path, device, context=50, profile=GpuProfile()) as model:
        model.decoder.feed(PROMPT)
        assert model.decoder.position == len(PROMPT)
        assert model.decoder.captures == 1


def test_a_prompt_that_does_not_fit_leaves_the_sequence_as_it_was(model: LanguageModel) -> None:
    model.decoder.feed(PROMPT)
    with pytest.raises(ArgumentError, match="45 of 64 positions are filled, 20 more do not fit"):
        model.decoder.feed(PROMPT[:20])
    assert model.decoder.position == 45


def test_no_tokens_leave_the_likeliest_one_as_it_was(model: LanguageModel) -> None:
    model.decoder.step(1)
    model.decoder.feed([])
    model.decoder.step()
    assert model.decoder.position == 2


def test_the_likeliest_token_is_not_that_of_before_the_prompt(model: LanguageModel) -> None:
    model.decoder.step(1)
    model.decoder.feed(PROMPT[:3])
    with pytest.raises(ArgumentError, match="give a token"):
        model.decoder.step()


def greedy(decoder: Decoder, count: int) -> list[int]:
    """The tokens after PROMPT."""
    decoder.reset()
    for token in PROMPT[:3]:
        decoder.step(token)
    found = []
    for _ in range(count):
        found.append(decoder.argmax())
        decoder.step()
    return found


@pytest.mark.parametrize("right", [0, 1, 3, 5])
def test_a_draft_is_taken_as_far_as_it_is_right_and_decoding_goes_on_as_without_it(model: LanguageModel, right: int) -> None:
    decoder = model.decoder
    expected = greedy(decoder, 9)
    greedy(decoder, 0)
    draft = [*expected[:right], *((token + 1) % 512 for token in expected[right:5])]
    assert decoder.verify_draft(draft) == expected[:right]
    assert decoder.position == 3 + right
    assert decoder.argmax() == expected[right]
    assert int(np.argmax(decoder.logits())) == expected[right]
    decoder.step()
    assert decoder.argmax() == expected[right + 1]


def test_a_draft_needs_a_likeliest_token_and_room(model: LanguageModel) -> None:
    decoder = model.decoder
    decoder.feed(PROMPT)
    with pytest.raises(ArgumentError, match="no step with a head"):
        decoder.verify_draft([1])
    decoder.step(1)
    decoder.feed([1] * 5)
    decoder.step(2)
    with pytest.raises(ArgumentError, match="52 of 64 positions are filled, 16 more do not fit"):
        decoder.verify_draft([1] * 16)
    assert decoder.position == 52
    with pytest.raises(ArgumentError, match="the length of the draft"):
        decoder.verify_draft([1] * 17)
