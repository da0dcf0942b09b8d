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
from executor.text.ends import end_ids
from executor.text.special_tokens import SpecialTokens
from executor.text.token_kinds import STEERING, Marks, TokenKind, bracketed, corrected, is_merged, looks_like_control

KEY: Final = "tokenizer.ggml."

REQUIRED: Final[Mapping[str, Mapping[str, str]]] = {
    "gpt2": {"tokens": "the text of each token", "merges": "the pairs that words are merged of"},
    "llama": {"tokens": "the text of each token", "scores": "a score for each token", "token_type": "the kind of each token"},
    "t5": {"tokens": "the text of each token", "scores": "a score for each token", "token_type": "the kind of each token"},
    "bert": {"tokens": "the text of each token"},
}
"""By the algorithm of a vocabulary, the arrays under tokenizer.ggml that it cannot do without, and what they say."""
NAMED: Final = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "cls", "mask", "fim_pad", "fim_rep", "fim_sep")
"""Tokens that a key names, tokenizer.ggml.bos_token_id and so on; the misspelling is that of the format."""
DEFAULT_IDS: Final[Mapping[str, Mapping[str, int]]] = {
    "gpt2": {"bos": 11, "eos": 11},
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102},
}
"""Ids of tokens that no key names, by the algorithm of a vocabulary. They count where the token there steers a model."""

_MASKED: Final = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_MASKED_ARCHITECTURES: Final = ("nomic-bert-moe", "jina-bert-v3")


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
    sep_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    control_ids: frozenset[int]
    templates: ChatTemplates

    @classmethod
    def from_gguf(cls, file: GgufFile, algorithm: str, *, default_ids: bool = True) -> Vocabulary:
        """Read and check the vocabulary of an algorithm, a key of REQUIRED; of another one what all have. ModelError names the
        key. default_ids: DEFAULT_IDS count."""
        reader = VocabularyKeys(file)
        for key, what in REQUIRED.get(algorithm, {}).items():
            if KEY + key not in file.metadata:
                reader.fail(key, f"is missing; a {algorithm} vocabulary needs it, {what}")
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
        templates = ChatTemplates.from_gguf(file)
        stated = [kind_of[int(value)] for value in raw] or [TokenKind.NORMAL] * size
        if named["bos"] is None:
            named["bos"] = named["cls"]
        for name, index in DEFAULT_IDS.get(algorithm, {}).items() if default_ids else ():
            if named[name] is None and index < size and (stated[index] in STEERING or looks_like_control(tokens[index])):
                named[name] = index
        marks = Marks(
            named=frozenset(index for index in named.values() if index is not None),
            ends=end_ids(tokens, named),
            written=frozenset[str]().union(*map(bracketed, templates.named.values())),
            made=_Words(reader, algorithm, tokens, stated).make,
        )
        kinds, control_ids = corrected(tokens, stated, marks)
        steering = (named["bos"], named["eos"], named["seperator"], named["unknown"])
        return cls(tokens, kinds, scores, *steering, marks.ends, control_ids, templates)

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

    def stripping(self, file: GgufFile) -> tuple[frozenset[int], frozenset[int]]:
        """Ids of tokens that take away the white space before them, and after them. No key says it, so it goes by the names of
        files: the mask of some encoders, and most special tokens of Phi-3."""
        name, pre = str(file.metadata.get("general.name")).lower(), str(file.metadata.get(KEY + "pre"))
        if any(part in pre for part in _MASKED) or file.metadata.get("general.architecture") in _MASKED_ARCHITECTURES:
            return self._spelt("<mask>"), frozenset()
        if "phi-3" in name or "phi3" in name:
            cut = STEERING | {TokenKind.USER_DEFINED}
            special = frozenset(index for index, kind in enumerate(self.kinds) if kind in cut)
            return frozenset(), (special | self._spelt("</s>")) - self._spelt("<unk>", "<s>", "<|endoftext|>")
        return (self._spelt("[MASK]") if "modern-bert" in name else frozenset()), frozenset()

    def _spelt(self, *texts: str) -> frozenset[int]:
        return frozenset(index for index, text in enumerate(self.tokens) if text in texts)


class _Words:
    """What words of a text can become, found out where somebody asks."""

    def __init__(self, reader: VocabularyKeys, algorithm: str, tokens: list[str], kinds: list[TokenKind]) -> None:
        self._reader = reader
        self._merges = algorithm == "gpt2"
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
