"""How an answer is made: token after token, each chosen on the device if it can be, and its text up to a stop string."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from executor.base.errors import ModelError
from executor.base.progress import Progress
from executor.model.answer import Generation
from executor.model.decoder import Decoder
from executor.model.logprobs import token_logprob
from executor.model.sampling import Sampler
from executor.model.scheduling.answer_text import AnswerText, StopStrings
from executor.model.scheduling.token_sequence import AnswerPiece
from executor.model.step import Draw
from executor.text.grammar import Grammar, GrammarGuide
from executor.text.tokenizer import Tokenizer
from ptxgen.kernels.token.argmax import NOT_A_NUMBER


@dataclass(frozen=True)
class AnswerRequest:
    """What an answer may be. most: tokens of it; ends: tokens that end it; logprobs: how many likeliest tokens are told of each
    place, None where nothing is; grammar: what its text must be; progress: is told how much of the prompt has been read."""

    prompt: list[int]
    most: int
    sampler: Sampler
    ends: frozenset[int]
    stops: StopStrings
    logprobs: int | None
    grammar: Grammar | None
    progress: Progress | None

    def chosen_on(self, decoder: Decoder) -> bool:
        """Whether the device chooses the tokens: nothing but the logits, what a grammar allows and the number of the draw is
        looked at, and nobody wants to know how likely they were."""
        if self.sampler.adjustments.any or self.logprobs is not None:
            return False
        return (self.sampler.is_greedy and self.grammar is None) or decoder.can_draw

    def choosing(self, decoder: Decoder) -> AbstractContextManager[None]:
        """The block of the decoder in which the tokens are chosen."""
        if not self.chosen_on(decoder):
            return nullcontext()
        if self.grammar is not None:
            return decoder.choosing()
        return nullcontext() if self.sampler.is_greedy else decoder.drawing(self.sampler)


def answer_pieces(
    decoder: Decoder, tokenizer: Tokenizer, asked: AnswerRequest, generation: Generation
) -> Generator[AnswerPiece, None, None]:  # fmt: skip
    """Make an answer piece by piece; `generation` tells of it. The decoder is busy from the first piece to the last."""
    guide = None if asked.grammar is None else GrammarGuide(asked.grammar, tokenizer, asked.ends)
    text = AnswerText(tokenizer.stream() if asked.stops.any or tokenizer.has_text else None, asked.stops)
    with decoder.busy("generating"):
        *before, last = asked.prompt
        start = time.perf_counter()
        generation.cached_prompt_tokens = decoder.rewind(before)
        decoder.feed(before[generation.cached_prompt_tokens :], asked.progress)
        with asked.choosing(decoder):
            end = None
            for token in _tokens(decoder, asked, generation, guide, last, start):
                if generation.stopped == "eos":
                    end = token
                    break
                added = text.push(token)
                generation.text += added
                if asked.logprobs is not None:
                    generation.logprobs[-1] = replace(generation.logprobs[-1], start=text.start)
                if text.stopped:
                    generation.stopped = "stop"
                yield AnswerPiece(token, added)
                if text.stopped:
                    break
        if rest := text.finish(end):
            generation.text += rest
            yield AnswerPiece(None, rest)


def _tokens(
    decoder: Decoder, asked: AnswerRequest, generation: Generation, guide: GrammarGuide | None, token: int, start: float
) -> Iterator[int]:  # fmt: skip
    """The tokens of the answer, which `generation` has already, up to what ends it beside a stop string; a token
    that ends it is the last one, and not in `generation`."""
    on_device = asked.chosen_on(decoder)
    while True:
        # The chosen token is on the device already: no copy, and the step after it need not wait until it was read.
        decoder.step(None if on_device and generation.tokens else token)
        if on_device and guide is not None:
            decoder.choose(guide.allowed(decoder.spec.vocab), Draw.of(asked.sampler))
        if on_device and len(generation.tokens) + 1 < asked.most:
            decoder.run_ahead()
        token = _chosen(decoder, asked, guide) if on_device else _sampled(decoder, asked, generation, guide)
        now = time.perf_counter()
        if not generation.tokens:
            generation.prompt_seconds = now - start
        generation.decode_seconds = now - start - generation.prompt_seconds
        if token in asked.ends:
            generation.stopped = "eos"
            yield token
            return
        generation.tokens.append(token)
        if guide is not None and guide.finished:
            generation.stopped = "grammar"
        elif len(generation.tokens) == asked.most:
            generation.stopped = "length"
        elif decoder.position == decoder.context:
            generation.stopped = "context"
        else:
            yield token
            continue
        yield token
        return


def _chosen(decoder: Decoder, asked: AnswerRequest, guide: GrammarGuide | None) -> int:
    """The token that the device chose: the likeliest, or the sampler's next draw."""
    token = decoder.chosen()
    if token == NOT_A_NUMBER:
        if asked.sampler.is_greedy and guide is None:
            raise ModelError("the logits hold NaN, so no token is the likeliest; the weights are damaged or overflow f32")
        logits = decoder.logits()
        return asked.sampler.sample(logits if guide is None else guide.restricted(logits))  # says what is wrong with them
    if not asked.sampler.is_greedy:
        asked.sampler.draws += 1
    if guide is not None and token not in asked.ends:
        guide.accept(token)
    return token


def _sampled(decoder: Decoder, asked: AnswerRequest, generation: Generation, guide: GrammarGuide | None) -> int:
    """The token that the host chooses, with its probability if that was asked for."""
    if guide is not None:
        guide.allowed(decoder.spec.vocab)  # found out beside the device, which computes the logits meanwhile
    logits = decoder.logits()
    allowed = logits if guide is None else guide.restricted(logits)
    token = asked.sampler.sample(allowed, asked.prompt, generation.tokens)
    if guide is not None and token not in asked.ends:
        guide.accept(token)
    if asked.logprobs is not None and token not in asked.ends:
        generation.logprobs.append(token_logprob(logits, token, asked.logprobs))
    return token
