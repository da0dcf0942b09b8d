"""tokenizer.json as the library `tokenizers` reads it back: the ids and the text of our own tokenizer, or a refusal that says
what the format cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from executor.base.errors import ModelError
from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.text.tokenizer import Tokenizer
from executor.text.tokenizer_json import tokenizer_json
from tests.real_models import smollm2_path
from tests.synthetic import Q, write_model

KINDS = (("gpt2", "smollm"), ("gpt2", "qwen2"), ("gpt2", "llama-bpe"), ("llama", None))
TEXTS = (
    "", " ", "the other  one\n\n in", "  the", "I've 1234 --\n x", "Caf\u00e9 e\u0301 \u65e5\u672c \U0001f600", "a\u00a0b\tc",
    "<|im_start|>user\nthe<|im_end|>\n", "<|im_end|><|im_end|> the", "<|im_end", "<0x41>", "\u2581the", "filler7 filler77",
)  # fmt: skip
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@cache
def synthetic(kind: str, pre: str | None = None) -> GgufFile:
    with TemporaryDirectory() as folder:
        path = write_model(
            Path(folder, "m.gguf"), tokenizer=kind, pre=pre, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, types=Q.F32
        )
        return GgufFile.open(path)


def altered(kind: str, changes: Mapping[str, Value], pre: str | None = None) -> Tokenizer:
    """A synthetic vocabulary with other keys."""
    base = synthetic(kind, pre)
    file = GgufFile.__new__(GgufFile)
    file.__dict__.update(base.__dict__)
    file.metadata = dict(base.metadata) | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer.from_gguf(file)


def with_tokens(kind: str, new: Mapping[str, int], pre: str | None = None, **changes: Value) -> Tokenizer:
    """A synthetic vocabulary with the given texts, by which kind they are, in place of its last fillers."""
    metadata = synthetic(kind, pre).metadata
    tokens, kinds = list(metadata["tokenizer.ggml.tokens"]), np.array(metadata["tokenizer.ggml.token_type"])  # type: ignore[arg-type]
    at = len(tokens) - 3 - len(new)
    tokens[at:-3], kinds[at:-3] = new.keys(), list(new.values())
    return altered(kind, {"tokens": tokens, "token_type": kinds, **changes}, pre)


def read_back(tokenizer: Tokenizer) -> Backend:
    backend: Backend = Backend.from_str(tokenizer_json(tokenizer).text)
    return backend


def require_equal(tokenizer: Tokenizer, backend: Backend, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False)
    assert backend.encode(text, add_special_tokens=False).ids == ids
    if not text.startswith(tokenizer.bos_token):
        assert backend.encode(text).ids == tokenizer.encode(text)
    if ids[:1] != [tokenizer.bos_id]:
        for skip in (True, False):
            assert backend.decode(ids, skip_special_tokens=skip) == tokenizer.decode(ids, skip_special=skip)


@cache
def both(kind: str, pre: str | None) -> tuple[Tokenizer, Backend]:
    tokenizer = Tokenizer.from_gguf(synthetic(kind, pre))
    return tokenizer, read_back(tokenizer)


@pytest.mark.parametrize(("kind", "pre"), KINDS)
def test_ids_and_texts_are_those_of_our_own_tokenizer(kind: str, pre: str | None) -> None:
    tokenizer, backend = both(kind, pre)
    assert backend.get_vocab_size() == tokenizer.vocab_size
    for text in TEXTS:
        require_equal(tokenizer, backend, text)
    assert backend.token_to_id("<|im_end|>") == tokenizer.eos_id


@pytest.mark.parametrize(("kind", "pre"), KINDS)
@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet="tahe 1'\n\u00e9\u2581\u0301\U0001f600<|im_end|>", max_size=30))
def test_any_text_gives_the_same_ids(kind: str, pre: str | None, text: str) -> None:
    require_equal(*both(kind, pre), text)


def test_a_real_vocabulary_is_equal_and_all_of_it_was_compared() -> None:
    tokenizer = Tokenizer.from_gguf(GgufFile.open(smollm2_path()))
    made = tokenizer_json(tokenizer)
    assert min(made.texts, made.ids) > tokenizer.vocab_size
    for text in TEXTS:
        require_equal(tokenizer, Backend.from_str(made.text), text)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_tokens_of_every_kind_keep_what_they_are(kind: str) -> None:
    """User-defined ones are cut out and read, control ones are cut out and silent, unused ones are neither."""
    new = {"<tool>": USER_DEFINED, "  ": USER_DEFINED, "[odd]": CONTROL, "[pad]": UNUSED}
    tokenizer = with_tokens(kind, new, add_space_prefix=False)
    backend = read_back(tokenizer)
    for text in ("the<tool>the  a[odd]in", "  <tool>", "th[odd]e", "<too"):
        require_equal(tokenizer, backend, text)
    unused = backend.token_to_id("[pad]")
    assert unused not in backend.encode("a[pad]").ids
    assert unused is not None
    assert backend.decode([unused, unused]) == tokenizer.decode([unused, unused]) == ""


def test_bos_and_eos_are_put_where_the_file_wants_them() -> None:
    tokenizer = altered("llama", {"add_bos_token": True, "add_eos_token": True})
    require_equal(tokenizer, read_back(tokenizer), "the")
    assert read_back(tokenizer).encode("the").ids[-1] == tokenizer.eos_id
    bare = altered("llama", {"add_bos_token": False, "add_space_prefix": False})
    require_equal(bare, read_back(bare), " the<|im_end|>the")


def test_runs_of_equal_scores_grow_from_the_left() -> None:
    """As Gemma's runs of spaces do, which all have one score."""
    runs = {"\u2581" * length: NORMAL for length in range(2, 8)}
    scores = np.array(synthetic("llama").metadata["tokenizer.ggml.scores"])
    scores[-3 - len(runs) : -3] = 0
    tokenizer = with_tokens("llama", runs, scores=scores)
    backend = read_back(tokenizer)
    for length in range(20):
        assert backend.encode(" " * length + "x").ids == tokenizer.encode(" " * length + "x")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (lambda: with_tokens("gpt2", {"the": NORMAL}), "has the text of token 25.; allowed: each text once"),
        (lambda: with_tokens("gpt2", {"\u0120filler": CONTROL}, "llama-bpe"), "is a control token that words of a text"),
        (lambda: with_tokens("gpt2", {"\u00e9\u00e9": USER_DEFINED}), "would be the text"),
        (lambda: with_tokens("llama", {"t9": NORMAL}), r"token 508 \(t9\) is made of a character that is no token"),
        (lambda: with_tokens("llama", {"9": CONTROL}), r"token 508 \(9\) is one character that is no text"),
        (lambda: with_tokens("llama", {"\u2581\u2581": USER_DEFINED}), "is user-defined, and text after it would get a space"),
        (lambda: with_tokens("llama", {"hx": UNUSED}), "is unused, and words become it before"),
        (lambda: altered("llama", {"scores": np.zeros(512, np.float32)}), "depends on where they stand"),
    ],
)  # fmt: skip
def test_what_the_format_cannot_hold_is_refused(tokenizer: object, message: str) -> None:
    assert callable(tokenizer)
    with pytest.raises(ModelError, match=f"cannot be written as tokenizer.json: .*{message}"):
        tokenizer_json(tokenizer())


def test_without_a_token_for_each_byte_sentencepiece_is_refused() -> None:
    tokens = list(synthetic("llama").metadata["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    kinds = np.array(synthetic("llama").metadata["tokenizer.ggml.token_type"])
    tokens[1], kinds[1] = "zero", NORMAL
    with pytest.raises(ModelError, match="there is no byte token <0x00>; a vocabulary of SentencePiece needs all 256"):
        tokenizer_json(altered("llama", {"tokens": tokens, "token_type": kinds}))
