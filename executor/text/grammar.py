"""What an answer may be, by a JSON schema, a regular expression or a Lark grammar; llguidance says which tokens may come
next."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described, instance
from executor.base.errors import GrammarError, shown
from executor.text.json_schema import held, moved, reached
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLTokenizer

_ALLOWED_OR_NOT: Final = np.asarray([-np.inf, 0.0], np.float32)

WORD: Final = 32
"""Tokens of a word of llguidance's bits."""

MOST_PARTS: Final = 100
"""Parts of a schema among which the one at fault is looked for."""

SPECIAL: Final = b"\xff"
"""Stands before the bytes of a token that no text has; it is no UTF-8."""

_tokenizers: WeakKeyDictionary[Tokenizer, LLTokenizer] = WeakKeyDictionary()


@dataclass(frozen=True)
class Grammar:
    """What an answer may be. `rules` is a grammar of llguidance; the class methods make it."""

    rules: str

    def __post_init__(self) -> None:
        if fault := _fault(instance("the grammar", self.rules, str)):
            raise GrammarError(f"the grammar cannot be used: {fault}")

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any] | bool) -> Self:
        """JSON that conforms to a schema (JSON Schema 2020-12), given as text or as what JSON stands for, without white space
        that it does not need. Annotations constrain nothing, of `format` all but those of json_schema.FORMATS.
        ArgumentError for what is no schema; GrammarError, with the path in the schema, for one that no value conforms to, and
        for constraints that answers cannot be held to."""

        if not isinstance(schema, str | Mapping | bool):
            raise ArgumentError(f"the schema is {described(schema)}; allowed: a mapping, true or false, or its JSON as text")
        try:
            value = held(json.loads(schema) if isinstance(schema, str) else schema)
            rules = _rules_of(value)
        except GrammarError:
            raise
        except RecursionError as error:
            raise GrammarError("the schema is nested too deep: it exceeds the recursion limit") from error
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"the schema is no JSON: {error}") from error
        if fault := _fault(rules):
            raise GrammarError(f"the grammar cannot be used: {_placed(value) or fault}")
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


def _rules_of(schema: Any) -> str:
    """TypeError and ValueError for what JSON cannot hold."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema, allow_nan=False), defaults={"whitespace_flexible": False})


def _fault(rules: str) -> str:
    """Why a grammar cannot be used, empty if it can be."""
    from llguidance import LLMatcher

    is_error, said = LLMatcher.validate_grammar_with_warnings(rules)
    return " ".join(" ".join(said).split()) if is_error else ""


def _placed(schema: Any) -> str:
    """What is wrong with the innermost part of a schema that is a fault of its own, and its path; empty in a large schema,
    where it is not looked for."""
    parts = [path for path, _ in reached(schema)]
    defined = {"$defs": {"root": moved(schema, "#/$defs/root")}}
    if len(parts) > MOST_PARTS or len(json.dumps(defined)) > MOST_PARTS * 256:
        return ""
    for path in reversed(parts):
        if fault := _fault(_rules_of(defined | {"$ref": "#/$defs/root" + quote(path[1:], safe="/~$")})):
            return f"{fault.partition(' while processing ')[0]} (at {shown(path)})"
    return ""


class GrammarGuide:
    """Which tokens an answer may go on with, token after token."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, ends: Collection[int]) -> None:
        """ends: tokens that end the answer. ModelError for a file without a vocabulary,
        GrammarError for a grammar that cannot be followed."""
        from llguidance import LLMatcher

        self._tokens = _tokens_of(tokenizer)
        self._matcher = LLMatcher(self._tokens, grammar.rules, log_level=0)
        self._may = np.full(_words(tokenizer.vocab_size), 0xFFFFFFFF, np.uint32)  # what the grammar allows, if it is to be said
        for token in tokenizer.eos_ids - set(ends):
            self._may[token // WORD] &= ~np.uint32(1 << token % WORD)
        self._computed: NDArray[np.uint32] | None = None
        self._check()

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end."""
        return self._matcher.is_stopped()

    def allowed(self, size: int) -> NDArray[np.uint32]:
        """Which tokens may come next, of so many that a model has logits of: a bit each, u32[size / 32 rounded up], as in
        ptxgen/kernels/token/allowed.py. Best asked while the device computes how likely they are. GrammarError where there
        is none."""
        if self._computed is None:
            self._computed = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check()
        allowed = np.zeros(max(_words(size), self._may.size), np.uint32)  # a model may have more logits than tokens
        np.bitwise_and(self._computed[: self._may.size], self._may, out=allowed[: self._may.size])
        if not allowed.any():
            raise GrammarError("no token of the vocabulary continues what the grammar allows")
        return allowed[: _words(size)]

    def restricted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits, f32[vocab], with -inf for what may not come next. GrammarError where nothing may."""
        bits = np.unpackbits(self.allowed(logits.size).view(np.uint8), count=logits.size, bitorder="little")
        return logits + _ALLOWED_OR_NOT[bits]

    def accept(self, token: int) -> None:
        """Go on with a token, which may come next."""
        self._matcher.consume_token(token)
        self._computed = None
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason, *_ = self._matcher.get_error().split("<state>")  # the parser's state follows
            raise GrammarError(f"the grammar cannot be followed: {' '.join(reason.split())}")


def compute_together(guides: Sequence[GrammarGuide]) -> None:
    """Find out for guides of one tokenizer which tokens may come next, by all processors. Their `allowed` says it, and what
    went wrong."""
    waiting = [guide for guide in guides if guide._computed is None]
    if len(waiting) > 1:
        computed = np.zeros((len(waiting), waiting[0]._may.size), np.uint32)
        matchers = [(guide._matcher, row) for row, guide in enumerate(waiting)]
        _threads().unsafe_compute_mask_ptr(matchers, computed.ctypes.data, computed[0].nbytes, len(waiting))
        for row, guide in enumerate(waiting):
            guide._computed = computed[row]


def _words(size: int) -> int:
    return -(-size // WORD)


@cache
def _threads() -> LLExecutor:
    from llguidance import LLExecutor

    return LLExecutor()


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
