"""Vocabularies of each algorithm: the ids that llama.cpp gives with small ones, ends of generations, what files leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.gguf.directory import Value
from executor.text.tokenizer import Tokenizer
from tests.executor.text.small_vocabularies import MAP, MORE_TEXTS, character_map, digest, files
from tests.executor.text.vocabularies import altered, with_keys

FOLDER = Path(__file__).parent
RECORD: Any = json.loads((FOLDER / "small_vocabularies.json").read_text())["ids"]
TEXTS = [text for text, _ in json.loads((FOLDER / "pre_tokenizers.json").read_text())["texts"]] + list(MORE_TEXTS)


@pytest.mark.parametrize("name", files())
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(with_keys(files()[name]))
    recorded = iter(RECORD[name][at : at + 6] for at in range(0, len(RECORD[name]), 6))
    for text in TEXTS:
        for special in (True, False):
            ids = tokenizer.encode(text, add_special=False, parse_special=special)
            assert digest(ids) == next(recorded), (text, special, ids)
    assert next(recorded, None) is None


def test_the_character_map_is_read_and_a_damaged_one_is_refused() -> None:
    keys = files()["t5, mapped"]
    tokenizer = Tokenizer.from_gguf(with_keys(keys))
    for text, mapped in MAP.items():
        assert tokenizer.encode(f"c{text}a") == tokenizer.encode(f"c{mapped}a")
    raw = character_map(MAP)
    for damaged in (raw[:3], raw[:2000], np.concatenate([raw[:4], raw[4:1028] | 0x30, raw[1028:]])):
        with pytest.raises(ModelError, match=r"tokenizer\.ggml\.precompiled_charsmap"):
            Tokenizer.from_gguf(with_keys(keys | {"tokenizer.ggml.precompiled_charsmap": damaged})).encode(
                "\u3000e\u0301\n" * 3
            )


@pytest.mark.parametrize(
    ("name", "text"),
    [("llama", "the cat"), ("t5", "the cat"), ("bert", "the cat"), ("gemma4", "the  cat\n\U0001f600\u4f60")],
)
def test_ids_become_the_text_again(name: str, text: str) -> None:
    tokenizer = Tokenizer.from_gguf(with_keys(files()[name]))
    assert tokenizer.decode(tokenizer.encode(text)).removeprefix(" ") == text


@pytest.mark.parametrize(
    ("keys", "mask"),
    [
        ({"tokenizer.ggml.pre": "jina-v2-code"}, "<mask>"),
        ({"general.architecture": "nomic-bert-moe"}, "<mask>"),
        ({"general.name": "Modern-BERT base"}, "[MASK]"),
    ],
)
def test_the_mask_of_some_models_takes_the_space_before_it(keys: dict[str, Value], mask: str) -> None:
    base = altered("gpt2", {}, "gpt-2").metadata
    tokens = list(base["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    tokens[-1] = mask
    tokenizer = Tokenizer.from_gguf(with_keys({"tokenizer.ggml.tokens": tokens, **keys}, "gpt2", "gpt-2"))
    assert tokenizer.encode(f"the \n {mask} a") == tokenizer.encode(f"the{mask} a")
    assert tokenizer.encode("the <s> a") != tokenizer.encode("the<s> a")


def test_what_is_put_around_a_text() -> None:
    def around(name: str, **keys: Value) -> list[str]:
        file = with_keys(files()[name] | {f"tokenizer.ggml.{key}": value for key, value in keys.items()})
        tokenizer = Tokenizer.from_gguf(file)
        ids = tokenizer.encode("the")
        inner = tokenizer.encode("the", add_special=False)
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        assert inner == [index for index in ids if index in inner]
        return [str(tokens[index]) if index not in inner else "..." for index in ids if index not in inner[1:]]

    assert around("llama") == ["<s>", "..."]
    assert around("t5") == ["...", "</s>"]
    assert around("gemma4", add_bos_token=False) == ["<s>", "..."]
    assert around("bert") == ["[CLS]", "..."]
    assert around("bert", add_sep_token=True) == ["[CLS]", "...", "[SEP]"]


@pytest.mark.parametrize(
    ("marks", "ends"),
    [
        ("<|end|> <|return|> <|call|> <|start|>", "<|return|> <|call|>"),
        ("<|end|> <|calls|> <|flush|>", "<|calls|> <|flush|>"),
        ("<|end|> <|return|>", "<|end|> <|return|>"),
        ("<eos> </s> <turn|> <|tool_response>", "<eos> <turn|> <|tool_response>"),
        ("</s> <s> [EOS] [e~[", "</s> [EOS] [e~["),
        ("<|fim_pad|> [PAD] <|repo_name|> <|file_sep|> <|fim_prefix|>", "<|fim_pad|> <|repo_name|> <|file_sep|>"),
        ("<\uff5cend\u2581of\u2581sentence\uff5c> <|eom_id|>", "<\uff5cend\u2581of\u2581sentence\uff5c> <|eom_id|>"),
    ],
)
def test_generations_end_where_llama_cpp_ends_them(marks: str, ends: str) -> None:
    tokens = ["<unk>", *marks.split(), "a"]
    tokenizer = Tokenizer.from_gguf(altered("gpt2", {"tokens": tokens, "merges": [], **_kinds(tokens), **NONE_NAMED}))
    assert {tokens[index] for index in tokenizer.eos_ids} == set(ends.split())


NONE_NAMED: dict[str, Value] = {"bos_token_id": 0, "eos_token_id": None}  # type: ignore[dict-item]


def _kinds(tokens: list[str]) -> dict[str, Value]:
    return {"token_type": np.asarray([3 if len(token) > 1 else 1 for token in tokens], np.int32)}


def test_a_key_names_the_end_of_code_that_fills_a_gap() -> None:
    tokens = ["<unk>", "<|fim_pad|>", "<|other|>"]
    keys = {"tokens": tokens, "merges": [], **_kinds(tokens), **NONE_NAMED, "fim_pad_token_id": 2}
    assert Tokenizer.from_gguf(altered("gpt2", keys)).eos_ids == {2}


def test_ids_that_no_key_names_count_where_the_token_steers() -> None:
    tokens = ["<unk>", "<s>", "</s>", "a"]
    unnamed: dict[str, Value] = {"bos_token_id": None, "eos_token_id": None}  # type: ignore[dict-item]
    kinds = {"token_type": np.asarray([2, 3, 3, 1], np.int32), "scores": np.zeros(4, np.float32)}
    tokenizer = Tokenizer.from_gguf(altered("llama", {"tokens": tokens, **kinds, **unnamed}))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    words: dict[str, Value] = {"tokens": [*"abcdefghijkl"], "merges": [], "token_type": np.ones(12, np.int32)}
    assert Tokenizer.from_gguf(altered("gpt2", {**words, **unnamed}, "gpt-2")).eos_id is None
    falcon: dict[str, Value] = {**words, "tokens": [*"abcdefghijk", "<|endoftext|>"]}
    assert Tokenizer.from_gguf(altered("gpt2", {**falcon, **unnamed}, "falcon")).eos_id == 11


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a . b !", "a. b!"),
        ("it 's", "it's"),
        (" ' x", "'x"),
        ("do n't , I 'd , we 'll", "do n't, I 'd, we 'll"),
        ("you 're , I 've ' ' x", "you're, I've'' x"),
        (" . . .", "..."),
    ],
)
def test_spaces_are_cleaned_as_llama_cpp_does_if_asked_for(text: str, cleaned: str) -> None:
    made = Tokenizer.from_gguf(altered("gpt2", {"pre": "gpt-2"}))
    ids = made.encode(text)
    assert made.decode(ids) == text
    assert made.decode(ids, clean_spaces=True) == cleaned
    other = Tokenizer.from_gguf(altered("gpt2", {"pre": "smollm"}))
    assert other.decode(ids, clean_spaces=True) == text
