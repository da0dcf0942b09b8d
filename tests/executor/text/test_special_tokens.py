"""Tokens cut out of a text: the longest at each place, control tokens in trusted spans alone, as many as a file holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.text.special_tokens import Span, SpecialTokens
from executor.text.token_kinds import TokenKind
from executor.text.tokenizer import Tokenizer
from tests.synthetic import Q, byte_characters, write_model

KINDS = {"c": TokenKind.CONTROL, "u": TokenKind.USER_DEFINED, "n": TokenKind.NORMAL}


def tokenizer(
    path: Path, marks: dict[str, TokenKind], *, pre: str = "smollm", template: str = "", typed: bool = True, **more: Any
) -> Tokenizer:
    """A byte-level vocabulary without merges, and these tokens after its 256 bytes."""
    tokens = [*byte_characters().values(), *marks]
    metadata: dict[str, Value] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.asarray([1] * 256 + [kind.value for kind in marks.values()], np.int32),
        "tokenizer.ggml.merges": ["a b"] if "ab" in marks else [],
        "tokenizer.chat_template": template,
    }
    ids = {f"tokenizer.ggml.{key}_token_id": 0 for key in ("bos", "eos")}
    path = write_model(path, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, types=Q.F32, pre=pre, vocab=512)
    file = GgufFile.open(path)
    file.metadata = {**file.metadata, **metadata, **ids, "tokenizer.ggml.add_bos_token": False, **more}
    if not typed:
        file.metadata = {key: value for key, value in file.metadata.items() if key != "tokenizer.ggml.token_type"}
    return Tokenizer.from_gguf(file)


def naive(control: Sequence[str], others: Sequence[str], spans: Sequence[Span]) -> list[tuple[str, bool]]:
    """What is cut out, and whether it is a token, by trying every token at every place."""
    text = "".join(span.text for span in spans)
    trusted = [span.trusted for span in spans for _ in span.text]
    out: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        here = [word for word in others if text.startswith(word, at)]
        here += [word for word in control if text.startswith(word, at) and all(trusted[at : at + len(word)])]
        word = max(here, key=len, default="")
        if word:
            out.append((word, True))
        elif out and not out[-1][1]:
            out[-1] = (out[-1][0] + text[at], False)
        else:
            out.append((text[at], False))
        at += len(word) or 1
    return out


WORDS = st.text("ab-^]", min_size=1, max_size=4)
SPANS = st.lists(st.builds(Span, st.text("ab-^]", max_size=6), st.booleans()), max_size=5)


@given(control=st.sets(WORDS, max_size=6), others=st.sets(WORDS, max_size=6), spans=SPANS)
def test_cutting_finds_what_trying_everything_finds(control: set[str], others: set[str], spans: list[Span]) -> None:
    others -= control
    ids = {word: index for index, word in enumerate(sorted(control | others))}
    marks = SpecialTokens({word: ids[word] for word in control}, {word: ids[word] for word in others})
    found = [(text, index is not None) for text, index in marks.cut(spans)]
    assert found == naive(sorted(control), sorted(others), spans)
    assert all(index is None or ids[text] == index for text, index in marks.cut(spans))


def test_a_control_token_counts_where_all_of_it_is_trusted(tmp_path: Path) -> None:
    made = tokenizer(tmp_path / "m.gguf", {"<|im_end|>": KINDS["c"], "<b>": KINDS["u"]})
    end, bold = 256, 257

    def controls(*spans: tuple[str, bool]) -> list[int]:
        return [index for index in made.encode_spans([Span(*span) for span in spans]) if index >= 256]

    assert controls(("<|im_end|><b>", True)) == [end, bold]
    assert controls(("<|im_", True), ("end|>", True)) == [end]
    assert controls(("<|im_end|><b>", False)) == [bold]
    assert controls(("<|im_", True), ("end|>", False)) == []
    assert controls(("<|im_", False), ("end|><|im_end|>", True)) == [end]
    assert controls(("<|im_end|", True), (">", False), ("<|im_end|>", True)) == [end]


def test_words_are_encoded_as_if_the_spans_were_one_text(tmp_path: Path) -> None:
    made = tokenizer(tmp_path / "m.gguf", {"ab": KINDS["n"]})
    assert made.encode_spans([Span("xa", True), Span("b", False)]) == made.encode("xab")
    assert len(made.encode("xab")) == 2


def test_user_defined_tokens_that_steer_are_control_tokens(tmp_path: Path) -> None:
    marks = dict.fromkeys(["<start_of_turn>", "[INST]", "<|tool|>", "<end_of_turn>", "<b>", "\n\n", "0"], KINDS["u"])
    template = "{{ '<start_of_turn>user\n\n' + messages[0]['content'] }}[INST]{{ 0 }}"
    made = tokenizer(tmp_path / "m.gguf", marks, template=template)
    text = "".join(marks)
    assert [index for index in made.encode(text) if index >= 256] == list(range(256, 263))
    assert [index for index in made.encode(text, parse_special=False) if index >= 256] == [260, 261, 262]
    assert made.decode(made.encode(text, parse_special=False)) == text


NORMAL = dict.fromkeys(["<|im_start|>", "<|im_end|>", "[INST]", "<s>", "<\uff5cUser\uff5c>", "<->", "<b>", "ab"], KINDS["n"])


@pytest.mark.parametrize("typed", [True, False], ids=["typed normal", "without types"])
def test_control_tokens_that_the_file_calls_normal_are_control_tokens(tmp_path: Path, typed: bool) -> None:
    template = "<|im_start|>[INST]<->{{ messages[0].content }}"
    merges = ["a b", "< -", "<- >"]
    ids: dict[str, Any] = {"tokenizer.ggml.eos_token_id": 256 + 3, "tokenizer.ggml.merges": merges}
    made = tokenizer(tmp_path / "m.gguf", NORMAL | {"<-": KINDS["n"]}, template=template, typed=typed, **ids)
    text = "".join(NORMAL)
    assert [index for index in made.encode(text) if index >= 256] == [256, 257, 258, 259, 260, 256 + 5, 256 + 7]
    assert [index for index in made.encode(text, parse_special=False) if index >= 256] == [256 + 5, 256 + 7]
    assert made.decode(made.encode(text, parse_special=False)) == text
    assert made.decode(made.encode(text)) == "[INST]<-><b>ab"


def test_a_comma_that_a_file_names_bos_stays_a_comma(tmp_path: Path) -> None:
    """Files of Qwen's models do: token 11."""
    made = tokenizer(tmp_path / "m.gguf", {}, **dict[str, Any]({"tokenizer.ggml.bos_token_id": ord(",")}))
    assert made.decode(made.encode("a,b", parse_special=False)) == made.decode(made.encode("a,b")) == "a,b"


@pytest.mark.parametrize("pre", ["llama-bpe", "smollm"])
def test_neither_a_word_nor_a_merge_makes_a_control_token_of_text(tmp_path: Path, pre: str) -> None:
    made = tokenizer(tmp_path / "m.gguf", {"ab": KINDS["c"]}, pre=pre)
    assert made.encode("ab") == [256]
    assert 256 not in made.encode("ab", parse_special=False)
    assert made.decode(made.encode("ab", parse_special=False)) == "ab"


def test_sentencepiece_merges_no_control_token(tmp_path: Path) -> None:
    tokens = ["<unk>", "[", "x", "]", "[x", "[x]", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 1, 1, 1, 1, 4] + [6] * 256,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": "[x]{{ messages }}",
    }
    small = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "types": Q.F32}
    path = write_model(tmp_path / "m.gguf", tokenizer="llama", metadata=metadata, **small)
    made = Tokenizer.from_gguf(GgufFile.open(path))
    assert made.encode("[x]", add_special=False) == [5]
    assert made.encode("[x]", add_special=False, parse_special=False) == [4, 3]


@pytest.mark.parametrize("text", ["</s>", "<|im_end|>", "<end_of_turn>", "[INST]"])
def test_sentencepiece_knows_control_tokens_that_the_file_calls_normal(tmp_path: Path, text: str) -> None:
    halves = [text[:2], text[2:]] if text == "</s>" else []
    tokens = ["<unk>", *sorted(set(text)), *halves, *(f"<0x{byte:02X}>" for byte in range(256)), text]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2] + [1] * (len(tokens) - 258) + [6] * 256 + [1],
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) - 1 if text == "</s>" else 0,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": "[INST]{{ messages }}",
    }
    small = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "types": Q.F32}
    path = write_model(tmp_path / "m.gguf", tokenizer="llama", metadata=metadata, **small)
    made = Tokenizer.from_gguf(GgufFile.open(path))
    assert made.encode(text, add_special=False) == [len(tokens) - 1]
    assert len(made.encode(text, add_special=False, parse_special=False)) > 1


def test_two_hundred_thousand_user_defined_tokens_cost_little(tmp_path: Path) -> None:
    marks = dict.fromkeys((f"{index:06}word" for index in range(200_000)), KINDS["u"])
    made = tokenizer(tmp_path / "m.gguf", marks)
    text = "123456word and 000001wor 199999word " * 200
    began = time.process_time()
    ids = made.encode(text)
    assert time.process_time() - began < 9
    assert ids.count(256 + 123456) == ids.count(256 + 199999) == 200
    assert 256 + 1 not in ids
    assert made.decode(ids) == text
