"""The vocabulary of a GGUF file, checked: token texts, kinds, scores, special ids. Text becomes ids in tokenizer.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NoReturn, cast

import numpy as np

from executor.base.errors import ModelError
from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.text.chat_templates import ChatTemplates
from executor.text.special_tokens import SpecialTokens
from executor.text.token_kinds import END_TEXTS, Marks, TokenKind, bracketed, corrected, is_merged

KEY: Final = "tokenizer.ggml."

REQUIRED: Final[Mapping[str, Mapping[str, str]]] = {
    "gpt2": {"tokens": "the text of each token", "merges": "the pairs that words are merged of"},
    "llama": {"tokens": "the text of each token", "scores": "a score for each token", "token_type": "the kind of each token"},
}
"""By the algorithm of a vocabulary, the arrays under tokenizer.ggml that it cannot do without, and what they say."""
NAMED: Final = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls", "mask")
"""Tokens that a key names, tokenizer.ggml.bos_token_id and so on; the misspelling is that of the format."""


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and kinds by id, f32-valued scores (empty if the file has none), and the ids with a meaning of their own.

    kinds: as the file states them, or corrected (token_kinds.py). control_ids: of tokens that steer a model, which ordinary
    text never becomes: control and unknown tokens, and user-defined ones that end a generation, look like <|this|>, or stand in
    brackets in a chat template, as Gemma's <start_of_turn>. templates: the file's chat templates.
    """

    tokens: list[str]
    kinds: list[TokenKind]
    scores: list[float]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    control_ids: frozenset[int]
    templates: ChatTemplates

    @classmethod
    def from_gguf(cls, file: GgufFile, model: str) -> Vocabulary:
        """Read and check the vocabulary of an algorithm, which is a key of REQUIRED. ModelError names the key."""
        reader = VocabularyKeys(file)
        for key, what in REQUIRED[model].items():
            if KEY + key not in file.metadata:
                reader.fail(key, f"is missing; a {model} vocabulary needs it, {what}")
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
        named = {name: reader.token_id(f"{name}_token_id", size) for name in NAMED}
        ends = {named["eos"], named["eot"], named["eom"]} - {None}
        ends |= {index for index, text in enumerate(tokens) if text in END_TEXTS}
        templates = ChatTemplates.from_gguf(file)
        stated = [kind_of[int(value)] for value in raw] or [TokenKind.NORMAL] * size
        marks = Marks(
            named=frozenset(index for index in named.values() if index is not None),
            ends=frozenset(index for index in ends if index is not None),
            written=frozenset[str]().union(*map(bracketed, templates.named.values())),
            made=_Words(reader, model, tokens, stated).make,
        )
        kinds, control_ids = corrected(tokens, stated, marks)
        return cls(tokens, kinds, scores, named["bos"], named["eos"], named["unknown"], marks.ends, control_ids, templates)

    def special_tokens(self, *, user_defined: bool) -> SpecialTokens:
        """The tokens that are cut out of a text before its words are encoded, with user-defined ones or without. The first of
        equal texts counts."""
        control: dict[str, int] = {}
        others: dict[str, int] = {}
        for index, kind in enumerate(self.kinds):
            if index in self.control_ids:
                control.setdefault(self.tokens[index], index)
            elif user_defined and kind is TokenKind.USER_DEFINED:
                others.setdefault(self.tokens[index], index)
        return SpecialTokens(control, others)


class _Words:
    """What words of a text can become, found out where somebody asks."""

    def __init__(self, reader: VocabularyKeys, model: str, tokens: list[str], kinds: list[TokenKind]) -> None:
        self._reader = reader
        self._merges = model == "gpt2"
        self._tokens = tokens
        self._kinds = kinds

    def make(self, text: str) -> bool:
        """Whether merging makes a token of this text."""
        return text in self._made if self._merges else is_merged(text, self._made)

    @cached_property
    def _made(self) -> frozenset[str]:
        """The tokens that merges make; of a vocabulary with scores all that merging may make."""
        if self._merges:
            return frozenset("".join(merge.split(" ", 1)) for merge in self._reader.strings("merges"))
        every = zip(self._tokens, self._kinds, strict=True)
        return frozenset(text for text, kind in every if kind is TokenKind.NORMAL)


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
