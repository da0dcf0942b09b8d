"""A text as one vector: the states that the logits are made of, pooled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.device import Device
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError
from tests.synthetic import Q, write_model

SHAPE: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64}


def made(path: Path, arch: str = "llama", metadata: Mapping[str, object] | None = None) -> Path:
    return write_model(path, arch, Q.Q8_0, metadata=metadata, **SHAPE)


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path, device: Device) -> LanguageModel:
    return LanguageModel.load(made(tmp_path / "m.gguf", getattr(request, "param", "llama")), device)


@pytest.mark.parametrize("model", ["llama", "gpt2", "olmo"], indirect=True)
def test_the_last_state_is_the_one_that_the_head_multiplies(model: LanguageModel) -> None:
    """The head of a tied model is its embedding table. The last norm is an RMSNorm, a LayerNorm, one without weights."""
    state = model.embed("once upon", pooling="last", unit=False)
    table = model.decoder.weights["token_embd.weight"]
    head = table.format.dequantize(table.buffer.to_numpy()).astype(np.float64)
    logits = model.logits(model.tokenizer.encode("once upon"))[-1]
    np.testing.assert_allclose(head @ state, logits, atol=1e-4 * float(np.abs(logits).max()))
    np.testing.assert_array_equal(model.logits("once upon")[-1], logits)


def test_the_mean_is_that_of_all_tokens(model: LanguageModel) -> None:
    text = "once upon a"
    ids = model.tokenizer.encode(text)
    pieces = [model.tokenizer.decode(ids[:length]) for length in range(1, len(ids) + 1)]
    begins = [at for at, piece in enumerate(pieces) if piece and model.tokenizer.encode(piece) == ids[: at + 1]]
    assert begins == list(range(1, len(ids)))  # all but the token that begins every text
    ends = model.embed([pieces[at] for at in begins], pooling="last", unit=False).astype(np.float64)
    means = [model.embed(pieces[at], pooling="mean", unit=False).astype(np.float64) * (at + 1) for at in begins]
    for later, earlier, end in zip(means[1:], means[:-1], ends[1:], strict=True):
        np.testing.assert_allclose(later - earlier, end, atol=1e-5)


def test_vectors_have_length_one_and_equal_texts_are_equal(model: LanguageModel) -> None:
    found = model.embed(["one text", "another", "one text"])
    assert found.shape == (3, 64)
    assert found.dtype == np.dtype(np.float32)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    assert found[0].tobytes() == found[2].tobytes() == model.embed("one text").tobytes()
    assert float(found[0] @ found[1]) < 0.9999
    assert model.embed([]).shape == (0, 64)
    ids = model.tokenizer.encode("one text")
    assert model.embed(ids).tobytes() == model.embed(np.array(ids)).tobytes() == found[0].tobytes()
    mixed: list[Any] = [ids, "another"]
    assert model.embed(mixed).tobytes() == found[:2].tobytes()


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last"), (0, "mean")])
def test_a_file_may_say_how(number: int, pooling: Any, tmp_path: Path, device: Device) -> None:
    with LanguageModel.load(made(tmp_path / "m.gguf", metadata={"llama.pooling_type": number}), device) as model:
        assert model.embed("one text").tobytes() == model.embed("one text", pooling=pooling).tobytes()


def test_what_cannot_be_is_refused_and_costs_nothing_else(model: LanguageModel, tmp_path: Path, device: Device) -> None:
    with pytest.raises(ArgumentError, match="pooling is 'max'; allowed: mean, cls, last"):
        model.embed("x", pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"the prompt is 5\.0; allowed: one row of token ids"):
        model.embed([5.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the context holds 64"):
        model.embed("word " * 100)
    with LanguageModel.load(made(tmp_path / "c.gguf", metadata={"llama.pooling_type": 5}), device) as other:
        said = r"llama\.pooling_type is 5; allowed: 0 \(none\), 1 \(mean\), 2 \(cls\), 3 \(last\), 4 \(rank\)"
        with pytest.raises(ModelError, match=said):
            other.embed("x")
        assert other.generate("x", max_tokens=1).prompt_tokens
        assert other.embed("x", pooling="last").shape == (64,)
        first = other.embed(other.tokenizer.encode("x y")[:1], pooling="last")
        assert other.embed("x y", pooling="cls").tobytes() == first.tobytes()
    with pytest.raises(ModelError, match=r"llama\.pooling_type is True; allowed: one whole number"):
        LanguageModel.load(made(tmp_path / "b.gguf", metadata={"llama.pooling_type": True}), device)


def test_a_conversation_goes_on_after_it(model: LanguageModel) -> None:
    expected = model.generate("once", max_tokens=5, sampler=Sampler(), stop_tokens=()).tokens
    model.embed("something else")
    assert model.generate("once", max_tokens=5, stop_tokens=()).tokens == expected
