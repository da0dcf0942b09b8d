"""The vocabulary of a GGUF file, checked: token texts, kinds, scores, special ids. Text becomes ids in tokenizer.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NoReturn, cast

import numpy as np

from executor.base.errors import ModelError
from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.text.special_tokens import SpecialTokens, bracketed, looks_like_control

KEY: Final = "tokenizer.ggml."

# Texts by which llama.cpp knows the end of a generation, whatever the metadata says (src/llama-vocab.cpp).
END_TEXTS: Final = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<|end_of_text|>",
        "<end_of_utterance>",
    }
)


class TokenKind(IntEnum):
    """The values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL: Final = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})
SILENT: Final = _SPECIAL | {TokenKind.UNUSED}
"""Kinds that are no part of the text that people read."""


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and kinds by id, f32-valued scores (empty if the file has none), and the ids with a meaning of their own.

    control_ids: of tokens that steer a model, which ordinary text never becomes. Beside those that the file calls control or
    unknown, user-defined ones that end a generation, look like <|this|>, or stand in brackets in the chat template: Gemma's
    <start_of_turn> is one. template: the file's chat template, or None.
    """

    tokens: list[str]
    kinds: list[TokenKind]
    scores: list[float]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    control_ids: frozenset[int]
    template: str | None

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Vocabulary:
        """Read and check the vocabulary. ModelError names the key."""
        reader = VocabularyKeys(file)
        tokens = reader.strings("tokens")
        if not tokens:
            reader.fail("tokens", "holds no tokens")
        size = len(tokens)
        kind_of = {kind.value: kind for kind in TokenKind}
        raw = reader.numbers("token_type", size)
        for value in set(raw):
            if value not in kind_of:
                reader.fail("token_type", f"holds {value:g}; allowed: {', '.join(f'{k.value} {k.name}' for k in TokenKind)}")
        scores = reader.numbers("scores", size)
        if not np.isfinite(scores).all():
            reader.fail("scores", "holds a value that is not finite")
        eos_id = reader.token_id("eos_token_id", size)
        ends = {eos_id, reader.token_id("eot_token_id", size), reader.token_id("eom_token_id", size)}
        ends |= {index for index, text in enumerate(tokens) if text in END_TEXTS}
        kinds = [kind_of[int(value)] for value in raw] or [TokenKind.NORMAL] * size
        template = chat_template(file)
        written = bracketed(template or "")

        def steers(index: int, kind: TokenKind) -> bool:
            if kind is not TokenKind.USER_DEFINED:
                return kind in _SPECIAL
            return index in ends or tokens[index] in written or looks_like_control(tokens[index])

        return cls(
            tokens=tokens,
            kinds=kinds,
            scores=scores,
            bos_id=reader.token_id("bos_token_id", size),
            eos_id=eos_id,
            unknown_id=reader.token_id("unknown_token_id", size),
            end_ids=frozenset(index for index in ends if index is not None),
            control_ids=frozenset(index for index, kind in enumerate(kinds) if steers(index, kind)),
            template=template,
        )

    def special_tokens(self) -> SpecialTokens:
        """The tokens that are cut out of a text before its words are encoded. The first of equal texts counts."""
        control: dict[str, int] = {}
        others: dict[str, int] = {}
        for index, kind in enumerate(self.kinds):
            if index in self.control_ids:
                control.setdefault(self.tokens[index], index)
            elif kind is TokenKind.USER_DEFINED:
                others.setdefault(self.tokens[index], index)
        return SpecialTokens(control, others)


def chat_template(file: GgufFile) -> str | None:
    """The Jinja2 template of the file, if it has one. ModelError if that is no text."""
    value = file.metadata.get("tokenizer.chat_template")
    if value is not None and not isinstance(value, str):
        raise ModelError("tokenizer.chat_template must be a string", file.path)
    return value


class VocabularyKeys:
    """Typed access to the tokenizer.ggml keys of one file; every failure names the key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.metadata: Mapping[str, Value] = file.metadata

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise the ModelError of a key."""
        raise ModelError(f"{KEY}{key} {message}", self.file.path)

    def text(self, key: str) -> str | None:
        """A string; None if the key is missing."""
        value = self.metadata.get(KEY + key)
        if value is not None and not isinstance(value, str):
            self.fail(key, f"is {repr(value)[:80]}; it must be a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A bool; the default if the key is missing."""
        value = self.metadata.get(KEY + key)
        if value is not None and not isinstance(value, bool):
            self.fail(key, f"is {repr(value)[:80]}; it must be a bool")
        return default if value is None else value

    def strings(self, key: str) -> list[str]:
        """An array of strings; empty if the key is missing."""
        value = self.metadata.get(KEY + key, [])
        if isinstance(value, np.ndarray) and value.size == 0:
            return []
        if not isinstance(value, list) or not set(map(type, value)) <= {str}:
            self.fail(key, "must be an array of strings")
        return cast("list[str]", value)

    def numbers(self, key: str, size: int) -> list[float]:
        """An array of `size` numbers; empty if the key is missing."""
        value = self.metadata.get(KEY + key)
        if value is None:
            return []
        if not isinstance(value, np.ndarray) or value.dtype == np.bool_:
            self.fail(key, "must be an array of numbers")
        if len(value) != size:
            self.fail(key, f"has {len(value)} elements and there are {size} tokens; they must be equal")
        return [float(item) for item in value.tolist()]

    def token_id(self, key: str, size: int) -> int | None:
        """An id below `size`; None if the key is missing."""
        value = self.metadata.get(KEY + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            self.fail(key, f"is {repr(value)[:80]}; allowed: 0 to {size - 1}")
        return value
