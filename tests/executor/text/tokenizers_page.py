"""Writes docs/tokenizers.md from the tables of executor/text. No test; test_tokenizers_page.py holds the page to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from executor.text.encoders import MODELS, NO_VOCABULARY, NOT_SUPPORTED
from executor.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

BEFORE = """# Tokenizers

Written by `python -m tests.executor.text.tokenizers_page docs/tokenizers.md` from the tables in `executor/text`; do not edit.

A GGUF file names its tokenizer by two keys: `tokenizer.ggml.model` is the algorithm, `tokenizer.ggml.pre` says how BPE cuts
text into pieces before merging. Ids are those of llama.cpp, which tests hold each row to.

With any other name the model still loads: it takes token ids (`ptxrun logits --tokens`, `model.generate([1, 2, 3])`), and text
is refused with the name and the known ones.
"""
DIFFERENCES = """
## Where tokenizers differ

* Pieces follow llama.cpp where it approximates the model's own `tokenizer.json`: gpt-4o and tekken take letters that are not
  ASCII as both capital and small, and combining marks as symbols; tiny_aya and youtu do not tell case; afmoe and tiny_aya keep
  the text before a number with its first digits. `executor/text/pre_tokenizers.py` names each case.
* qwen2 composes characters first (Unicode's NFC), as its `tokenizer.json` says; llama.cpp does not.
* A text that begins with BOS gets no second one.
* WordPiece ends a text with SEP only if the file has `add_sep_token`; llama.cpp always does.
* Control tokens written in ordinary text are text. `tokenizer.encode(text)` parses them; prompts and messages do not.
* User-defined tokens of SentencePiece are found as SentencePiece finds them: no space is put after one.
* `tokenizer.decode(ids, clean_spaces=True)` removes the space before some punctuation, if the model's own tokenizer does (C
  below). Text that streams is never cleaned.
* A generation ends with EOS, EOT, EOM, the pad, repository and file marks of fill-in-the-middle, and the tokens that llama.cpp
  knows by their text (`executor/text/ends.py`).
"""
FLAGS = {
    "I": "a piece that is a token is that token, whatever the merges give",
    "B": "BOS before a text, if the file does not say",
    "F": "BOS before a text, whatever the file says",
    "S": "the model separates two texts by SEP",
    "C": "decoding a whole text is meant to clean spaces",
    "U": "tokens hold UTF-8 text, not characters that stand for bytes",
    "N": "characters are composed first (NFC)",
}


def page() -> str:
    return "\n".join([BEFORE, *_models(), *_pre_tokenizers(), DIFFERENCES])


def _models() -> Iterator[str]:
    yield from ("## Algorithms", "", "| `tokenizer.ggml.model` | algorithm |", "|---|---|")
    yield from (f"| {name} | {what} |" for name, what in MODELS.items())
    yield f"| {', '.join(NO_VOCABULARY)} | token ids alone |"
    yield from (f"| {name} | not supported: {what} |" for name, what in NOT_SUPPORTED.items())


def _pre_tokenizers() -> Iterator[str]:
    yield from ("", "## Pre-tokenizers", "", "A file without `tokenizer.ggml.pre` is cut as `default`, with a warning.", "")
    yield from (f"* {flag}: {what}" for flag, what in FLAGS.items())
    yield from ("", "| `tokenizer.ggml.pre` | flags |", "|---|---|")
    rows: dict[PreTokenizer, list[str]] = {}
    for name, split in PRE_TOKENIZERS.items():
        rows.setdefault(split, []).append(name)
    yield from (f"| {', '.join(names)} | {_flags(split)} |" for split, names in rows.items())


def _flags(split: PreTokenizer) -> str:
    bos = split.add_bos and not split.force_bos
    on = (split.ignore_merges, bos, split.force_bos, split.add_sep, split.clean_spaces, split.raw, split.nfc)
    return " ".join(flag for flag, is_on in zip(FLAGS, on, strict=True) if is_on)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
