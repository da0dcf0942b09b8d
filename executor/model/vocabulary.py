"""The vocabulary of a GGUF file, checked: token texts, kinds, scores, special ids. Text becomes ids in tokenizer.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NoReturn, cast

import numpy as np

from executor.errors import ModelError
from executor.model.gguf_file import GgufFile, Value

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


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and kinds by id, f32-valued scores (empty if the file has none), and the ids with a meaning of their own."""

    tokens: list[str]
    kinds: list[TokenKind]
    scores: list[float]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Vocabulary:
        """Read and check the vocabulary. ModelError names the key."""
        reader = VocabularyKeys(file)
        tokens = reader.strings("tokens")
        if not tokens:
            reader.fail("tokens", "holds no tokens")
        size = len(tokens)
        known = {kind.value: kind for kind in TokenKind}
        raw = reader.numbers("token_type", size)
        for value in set(raw):
            if value not in known:
                reader.fail("token_type", f"holds {value:g}; allowed: {', '.join(f'{k.value} {k.name}' for k in TokenKind)}")
        scores = reader.numbers("scores", size)
        if not np.isfinite(scores).all():
            reader.fail("scores", "holds a value that is not finite")
        eos_id = reader.token_id("eos_token_id", size)
        ends = {eos_id, reader.token_id("eot_token_id", size), reader.token_id("eom_token_id", size)}
        ends |= {index for index, text in enumerate(tokens) if text in END_TEXTS}
        return cls(
            tokens=tokens,
            kinds=[known[int(value)] for value in raw] or [TokenKind.NORMAL] * size,
            scores=scores,
            bos_id=reader.token_id("bos_token_id", size),
            eos_id=eos_id,
            unknown_id=reader.token_id("unknown_token_id", size),
            end_ids=frozenset(index for index in ends if index is not None),
        )


class VocabularyKeys:
    """Typed access to the tokenizer.ggml keys of one file; every failure names the key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.metadata: Mapping[str, Value] = file.metadata

    def fail(self, key: str, message: str) -> NoReturn:
        raise ModelError(f"{KEY}{key} {message}", self.file.path)

    def text(self, key: str) -> str | None:
        value = self.metadata.get(KEY + key)
        if value is not None and not isinstance(value, str):
            self.fail(key, f"is {repr(value)[:80]}; it must be a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
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
        value = self.metadata.get(KEY + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            self.fail(key, f"is {repr(value)[:80]}; allowed: 0 to {size - 1}")
        return value
