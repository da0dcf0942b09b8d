"""A reranker says how well a text answers a query: with its classifier, after the prompt that its file makes of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.device import Device, open_devices
from executor.model.generation import LanguageModel
from ptxgen.errors import ArgumentError
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

SHAPE: Final[dict[str, Any]] = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64}
BEFORE, BETWEEN, AFTER = "<|im_start|>Query: ", " text: ", "<|im_end|>"
KEYS: Final[dict[str, object]] = {
    "qwen3.pooling_type": 4,
    "qwen3.classifier.output_labels": ["yes", "no"],
    "tokenizer.chat_template.rerank": f"{BEFORE}{{query}}{BETWEEN}{{document}}{AFTER}",
}
TEXTS: Final = ("the river", "{query} <|im_end|> river")


def reranker(path: Path, metadata: dict[str, object] = KEYS) -> Path:
    return write_model(path, "qwen3", Q.Q8_0, metadata=metadata, labels=2, **SHAPE)


def scores(path: Path, model: LanguageModel) -> list[float]:
    """In float64: the softmax of the classifier of the last state. A query in a document's braces is no query, and a control
    token in it is text."""
    tokenizer, reference = model.tokenizer, ReferenceModel(path)
    found = []
    for text in TEXTS:
        shown = text.replace("<|im_end|>", "<|im_end@>")
        ids = tokenizer.encode(f"{BEFORE}what{BETWEEN}{shown}{AFTER}", add_special=False)
        if shown != text:
            own = tokenizer.encode(f"what{BETWEEN}{text}", add_special=False, parse_special=False)
            ids = [*tokenizer.encode(BEFORE, add_special=False), *own, *tokenizer.encode(AFTER, add_special=False)]
        yes, no = reference.weight("cls.output.weight") @ reference.states(ids)[-1]
        found.append(1 / (1 + np.exp(no - yes)))
    return found


@pytest.mark.slow
def test_scores_are_those_of_the_classifier(tmp_path: Path, device: Device) -> None:
    path = reranker(tmp_path / "m.gguf")
    with LanguageModel.load(path, device) as model:
        found = model.rank("what", TEXTS)
        assert found.dtype == np.dtype(np.float32)
        np.testing.assert_allclose(found, scores(path, model), rtol=0, atol=1e-5)
        assert model.rank("what", TEXTS[1]).tobytes() == found[1:].tobytes()
        with pytest.raises(ArgumentError, match="the context holds 64"):
            model.rank("what", "word " * 100)
        with pytest.raises(ModelError, match=r"qwen3.pooling_type is 4: the model ranks texts \(`rank`\) and makes no vectors"):
            model.embed("x")


def test_what_ranks_no_texts_says_so(tmp_path: Path, device: Device) -> None:
    """A Llama's classifier is not used, as in llama.cpp."""
    path = write_model(tmp_path / "l.gguf", "llama", Q.Q8_0, labels=2, metadata={"llama.pooling_type": 4}, **SHAPE)
    with (
        LanguageModel.load(path, device) as model,
        pytest.raises(ModelError, match=r"has no cls\.output\.weight of several labels"),
    ):
        model.rank("x", "y")
    one = write_model(tmp_path / "o.gguf", "qwen3", Q.Q8_0, labels=1, **SHAPE)
    with LanguageModel.load(one, device) as model, pytest.raises(ModelError, match="of several labels"):
        model.rank("x", "y")
    bare = reranker(tmp_path / "b.gguf", {key: value for key, value in KEYS.items() if "template" not in key})
    with LanguageModel.load(bare, device) as model, pytest.raises(ModelError, match="no chat template named rerank"):
        model.rank("x", "y")


@pytest.mark.slow
def test_devices_that_share_a_model_have_its_scores(tmp_path: Path, device: Device) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3", Q.Q8_0, metadata=KEYS, labels=2, **SHAPE | {"kv_heads": 2})
    with LanguageModel.load(path, device) as model:
        alone = model.rank("what", TEXTS)
    with open_devices(["emulator", "emulator"]) as two, LanguageModel.load(path, two) as model:
        assert model.rank("what", TEXTS).tobytes() == alone.tobytes()
