"""What is asked of a scheduler, checked, as a sequence: whatever could never run is refused here, and nothing later."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from executor.base.arguments import described, instance, tokens, whole
from executor.memory.page_pool import PagePool, PageTable
from executor.model.sampling import MAX_SEED, Sampler
from executor.model.scheduling.answer_text import AnswerText, Pieces, StopStrings
from executor.model.scheduling.token_sequence import SequenceLimits, TokenSequence
from executor.model.step import StepEngine
from executor.text.grammar import Grammar, GrammarGuide
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError


class TextTokens(Protocol):
    """What a scheduler needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def has_text(self) -> bool:
        """Whether there is a vocabulary."""

    def encode(self, text: str, /, *, parse_special: bool) -> list[int]:
        """Token ids of a text; control tokens that are written in it only if wanted."""

    def stream(self) -> Pieces:
        """A decoder for ids that arrive one by one."""


@dataclass(frozen=True)
class RequestSettings:
    """The settings of a request as Scheduler.submit takes them, not checked yet."""

    max_tokens: int
    sampler: Sampler | None
    seed: int | None
    stop: str | Collection[str]
    stop_tokens: Collection[int] | None
    spelt: Collection[int]
    grammar: Grammar | None
    logprobs: int | None
    prompt_logprobs: int | None
    on_token: Callable[[int], None] | None


def new_sequence(
    number: int, engine: StepEngine, pool: PagePool, tokenizer: TextTokens, prompt: object, settings: RequestSettings
) -> TokenSequence:
    """The sequence of a request, which is the scheduler's `number`-th. Errors as Scheduler.submit."""
    ids = _prompt(engine, tokenizer, prompt)
    limit = whole("max_tokens", settings.max_tokens, 1 if settings.prompt_logprobs is None else 0)
    ends = tokenizer.eos_ids if settings.stop_tokens is None else tokens("stop_tokens", settings.stop_tokens, engine.vocab)
    sampler = Sampler() if settings.sampler is None else instance("sampler", settings.sampler, Sampler)
    sampler.adjustments.require(engine.vocab)
    seed = sampler.seed if settings.seed is None else whole("seed", settings.seed, 0, MAX_SEED)
    seed = secrets.randbits(64) if seed is None else seed
    if settings.on_token is not None and not callable(settings.on_token):
        raise ArgumentError(f"on_token is {described(settings.on_token)}; allowed: a function of a token id")
    _check_pages(engine, pool, len(ids), limit)
    stops = StopStrings(settings.stop)
    pieces = tokenizer.stream() if stops.any or tokenizer.has_text else None
    return TokenSequence(
        number=number,
        prompt=tuple(ids),
        limits=SequenceLimits(limit, frozenset(ends), engine.context),
        sampler=sampler.with_seed(seed),
        seed=seed,
        text=AnswerText(pieces, stops, tokens("spelt", settings.spelt, engine.vocab)),
        table=PageTable(pool),
        on_token=settings.on_token,
        guide=None if settings.grammar is None else _guide(settings.grammar, tokenizer, ends),
        top=None if settings.logprobs is None else whole("logprobs", settings.logprobs, 0),
        prompt_top=None if settings.prompt_logprobs is None else whole("prompt_logprobs", settings.prompt_logprobs, 0),
    )


def _prompt(engine: StepEngine, tokenizer: TextTokens, prompt: object) -> list[int]:
    ids = tokenizer.encode(prompt, parse_special=False) if isinstance(prompt, str) else prompt
    ids = tokens("the prompt", ids, engine.vocab)
    if not ids:
        raise ArgumentError("the prompt has no tokens; give at least one")
    if len(ids) > engine.context:
        raise ArgumentError(f"the prompt has {len(ids)} tokens, the context holds {engine.context}")
    return ids


def _check_pages(engine: StepEngine, pool: PagePool, prompt: int, max_tokens: int) -> None:
    """The last token of an answer is not computed, so it needs no room."""
    positions = min(prompt + max(max_tokens - 1, 0), engine.context)
    needed, pages, length = pool.pages_for(positions), pool.pages, pool.page_len
    if needed > pages:
        raise ArgumentError(
            f"{prompt} tokens of prompt and {max_tokens} of answer need {needed} pages of {length} positions, and the "
            f"cache has {pages}; allowed: together up to {pages * length + 1} tokens"
        )


def _guide(grammar: object, tokenizer: TextTokens, ends: Collection[int]) -> GrammarGuide:
    chosen = instance("grammar", grammar, Grammar, "Grammar.json_schema, .regex or .lark")
    return GrammarGuide(chosen, instance("the scheduler's tokenizer", tokenizer, Tokenizer), ends)
