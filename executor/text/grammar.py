"""What an answer may be, by a JSON schema, a regular expression or a Lark grammar; llguidance says which tokens may come
next."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described, instance
from executor.base.errors import ModelError
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_ALLOWED_OR_NOT: Final = np.asarray([-np.inf, 0.0], np.float32)

SPECIAL: Final = b"\xff"
"""Stands before the bytes of a token that no text has; it is no UTF-8."""

_tokenizers: WeakKeyDictionary[Tokenizer, LLTokenizer] = WeakKeyDictionary()


@dataclass(frozen=True)
class Grammar:
    """What an answer may be. `rules` is a grammar of llguidance; the class methods make it."""

    rules: str

    def __post_init__(self) -> None:
        from llguidance import LLMatcher

        is_error, said = LLMatcher.validate_grammar_with_warnings(instance("the grammar", self.rules, str))
        if is_error:
            raise ArgumentError(f"the grammar cannot be used: {' '.join(' '.join(said).split())}")

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any]) -> Self:
        """JSON that conforms to a schema (JSON Schema 2020-12; what llguidance does not know of it is an error), given as text
        or as what JSON stands for, without white space that it does not need. ArgumentError for what is no schema."""
        from llguidance import LLMatcher

        if not isinstance(schema, str | Mapping):
            raise ArgumentError(f"the schema is {described(schema)}; allowed: a mapping, or its JSON as text")
        try:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            rules = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_flexible": False})
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"the schema is no JSON: {error}") from error
        return cls(rules)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Text that a regular expression (of Rust's regex crate, without anchors) matches as a whole."""
        from llguidance import LLMatcher

        return cls(LLMatcher.grammar_from_regex(instance("the pattern", pattern, str)))

    @classmethod
    def lark(cls, rules: str) -> Self:
        """Text of a context-free grammar in llguidance's dialect of Lark, from the rule `start` on."""
        from llguidance import LLMatcher

        return cls(LLMatcher.grammar_from_lark(instance("the grammar", rules, str)))


class GrammarGuide:
    """Which tokens an answer may go on with, token after token."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, ends: Collection[int]) -> None:
        """ends: tokens that end the answer. ModelError for a file without a vocabulary."""
        from llguidance import LLMatcher

        self._tokens = _tokens_of(tokenizer)
        self._matcher = LLMatcher(self._tokens, grammar.rules, log_level=0)
        self._forbidden = np.asarray(sorted(tokenizer.eos_ids - set(ends)), np.int64)
        self._bias: NDArray[np.float32] | None = None
        self._check()

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end."""
        return self._matcher.is_stopped()

    def prepare(self) -> None:
        """Find out which tokens may come next, while the device computes how likely they are."""
        if self._bias is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            allowed = np.unpackbits(bits, bitorder="little").view(np.bool_)
            allowed[self._forbidden] = False
            if not allowed.any():
                raise ModelError("no token of the vocabulary continues what the grammar allows")
            self._bias = _ALLOWED_OR_NOT[allowed.view(np.uint8)]

    def restricted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits, f32[vocab], with -inf for what may not come next. ModelError where nothing may."""
        self.prepare()
        assert self._bias is not None
        if self._bias.size < logits.size:  # rows that no token has
            self._bias = np.append(self._bias, np.full(logits.size - self._bias.size, -np.inf, np.float32))
        return logits + self._bias[: logits.size]

    def accept(self, token: int) -> None:
        """Go on with a token, which may come next."""
        self._matcher.consume_token(token)
        self._bias = None
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason, *_ = self._matcher.get_error().split("<state>")  # behind it stands all that the parser knows
            raise ModelError(f"the grammar cannot be followed: {' '.join(reason.split())}")


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        texts = [tokenizer.token_bytes(index, skip_special=False) for index in ids]
        silent = {index for index in ids if texts[index] and not tokenizer.token_bytes(index)} | tokenizer.eos_ids
        self.tokens = [SPECIAL + text if index in silent else text for index, text in enumerate(texts)]
        self.special_token_ids = sorted(silent)
        self.eos_token_id = min(tokenizer.eos_ids, default=tokenizer.vocab_size - 1)
        self.bos_token_id = tokenizer.bos_id
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False, parse_special=False, continues=True)


def _tokens_of(tokenizer: Tokenizer) -> LLTokenizer:
    """Made once for a tokenizer: of a large vocabulary it takes about a second."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if tokenizer not in _tokenizers:
        vocabulary = _Vocabulary(tokenizer)
        _tokenizers[tokenizer] = LLTokenizer(
            TokenizerWrapper(vocabulary), eos_token=sorted(tokenizer.eos_ids) or [vocabulary.eos_token_id]
        )
    return _tokenizers[tokenizer]
