"""The table of pre-tokenizers: the pieces, names and defaults that llama.cpp has, and time that grows with the text alone."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from executor.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from executor.text.tokenizer import Tokenizer
from tests.executor.text.vocabularies import synthetic

RECORD: Any = json.loads(Path(__file__).with_name("pre_tokenizers.json").read_text())
"""names: kind and flags by name; texts: each with the different ways to cut it, as lengths; pieces: by kind, which way for each
text, as a digit."""


@cache
def splitter(split: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(regex, "isolated") for regex in split.regexes()])


def test_names_and_defaults_are_those_of_llama_cpp() -> None:
    flags = {name: dict.fromkeys(flags, True) for name, (_, flags) in RECORD["names"].items()}
    assert flags.keys() == PRE_TOKENIZERS.keys()
    for name, split in PRE_TOKENIZERS.items():
        assert (split.ignore_merges, split.clean_spaces, split.add_sep) == tuple(flags[name].get(f, False) for f in "ICS"), name
        assert split.add_bos == (flags[name].get("B", False) or split.force_bos), name


@pytest.mark.slow
def test_pieces_are_those_of_llama_cpp() -> None:
    for name, (kind, _) in RECORD["names"].items():
        for (text, ways), digit in zip(RECORD["texts"], RECORD["pieces"][kind], strict=True):
            pieces = [piece for piece, _ in splitter(PRE_TOKENIZERS[name]).pre_tokenize_str(text)]
            assert [len(piece) for piece in pieces] == list(map(int, ways[int(digit, 36)].split())), (name, text)
            assert "".join(pieces) == text


@pytest.mark.slow
@pytest.mark.parametrize("unit", [" ", "1", "A\n", " 1", "a\u0301"])
def test_no_text_costs_more_than_its_length(unit: str) -> None:
    """A regular expression that searches again from every place would take minutes here."""
    text = "x" + unit * 20_000
    for split in dict.fromkeys(PRE_TOKENIZERS.values()):
        began = time.process_time()
        splitter(split).pre_tokenize_str(text)
        assert time.process_time() - began < 1.5, split


BYTE_LEVEL = [name for name, split in PRE_TOKENIZERS.items() if not split.raw and not split.nfc]


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(name=st.sampled_from(BYTE_LEVEL), text=st.text(max_size=40) | st.text("aA 1'\n\r\t.\u4e2d\u0301\U0001f600", max_size=40))
def test_what_was_encoded_is_decoded(name: str, text: str) -> None:
    tokenizer: Tokenizer = synthetic("gpt2", name)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text
