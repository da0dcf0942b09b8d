"""Many sequences over one paged cache: requests in, steps, answers out. Who runs in which rows is decided in
continuous_batch.py; the steps themselves are the engine's."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described, instance, tokens, whole
from executor.base.errors import DeviceFailed, ModelError
from executor.device.owner import OwnerThread
from executor.memory.page_pool import PagePool, PageTable
from executor.model.sampling import MAX_SEED, Sampler
from executor.model.scheduling.answer_text import AnswerText, Pieces, StopStrings
from executor.model.scheduling.continuous_batch import ContinuousBatch, Share
from executor.model.scheduling.request import Request
from executor.model.scheduling.token_sequence import Limits, Stopped, TokenSequence, Waiting
from executor.model.scheduling.verify import Drafter, accepted, rows_of
from executor.model.step import Row, Scores, StepEngine
from executor.text.grammar import Grammar, GrammarGuide
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

_log = logging.getLogger(__name__)


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
class SchedulerStatus:
    """What a scheduler has and did. finished: sequences by the reason; waiting: what the first queued sequence waits for;
    pages: held by sequences, idle ones that are still found, free ones; rows: of all steps, of which prompt_rows were of
    prompts, and of what was computed again."""

    queued: int
    running: int
    finished: dict[Stopped, int]
    waiting: Waiting
    pages_held: int
    pages_idle: int
    pages_free: int
    steps: int
    rows: int
    prompt_rows: int
    preemptions: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True)
class _Ahead:
    """A step that was started before the tokens of its rows were read. shares: those of the step before; lengths: how many
    tokens each sequence has by now, if it goes on; scores: what comes out, or why it has failed."""

    shares: list[Share]
    lengths: list[int]
    scores: Scores | Exception

    @property
    def is_next(self) -> bool:
        """Whether its rows are those of sequences that run, but for some that have ended. Not after an interrupt that came
        before all tokens were delivered."""
        pairs = zip(self.shares, self.lengths, strict=True)
        left = [(share.sequence, length) for share, length in pairs if share.sequence.state == "running"]
        return bool(left) and all(len(sequence.tokens) == length for sequence, length in left)


class Scheduler:
    """Runs sequences that come and go at any time, in the order of arrival; belongs to the thread of its device.

    A step has one row for each sequence that decodes; its other rows go to prompts, and what is left to drafts. Pages of equal
    beginnings are shared, with running sequences and with those that ended while their pages are not needed. A sequence waits
    until there is a slot, and pages for all its tokens; if pages run out later, the youngest one gives its own back and is
    computed again when there is room, from the tokens that it has. What a sequence answers depends on its prompt, sampler and
    seed alone, as far as the engine's rows do not depend on the other rows of their step. After an exception in a step, Ctrl-C
    included, the scheduler works: see `step`.
    """

    def __init__(
        self,
        engine: StepEngine,
        tokenizer: TextTokens,
        *,
        prompt_rows: int | None = None,
        draft: Callable[[], Drafter] | None = None,
        owner: OwnerThread | None = None,
    ) -> None:
        """prompt_rows: most rows of a step that prompts get (default: all that are free); draft: makes what guesses the next
        tokens of each greedy sequence, such as PromptLookup; owner: the device's (default: the calling thread)."""
        self.engine = engine
        self.tokenizer = tokenizer
        self.prompt_rows = engine.rows if prompt_rows is None else whole("prompt_rows", prompt_rows, 1, engine.rows)
        self.pool = PagePool(engine.pages, engine.page_len)
        self._model = engine.model
        self._draft = draft
        self._owner = owner or OwnerThread("the scheduler")
        self._batch = ContinuousBatch(self.pool, min(engine.slots, engine.rows), engine.rows, self.prompt_rows)
        self._arrived = 0
        self._steps = self._rows = self._prompt_rows = self._drafted = self._agreed = 0
        self._finished: Counter[Stopped] = Counter()
        self._ahead: _Ahead | None = None
        self._stepping = False
        self._turn: asyncio.Future[None] | None = None
        self._ended = ""  # why nothing can run any more

    def submit(
        self,
        prompt: str | Sequence[int] | NDArray[np.integer[Any]],
        *,
        max_tokens: int,
        sampler: Sampler | None = None,
        seed: int | None = None,
        stop: str | Collection[str] = (),
        stop_tokens: Collection[int] | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Request:
        """Queue a sequence: text or token ids, continued by at most `max_tokens` tokens. Control tokens are not looked for in a
        text.

        sampler: its settings count (default: greedy), drawn with `seed`, else with its own seed, else with a new one; stop:
        strings before which the text ends; stop_tokens: tokens that end it (default: the vocabulary's ends); grammar: what the
        text must be, as far as it goes; logprobs: how many of the likeliest tokens of each place are told with their
        probabilities (0: those of the answer alone; None: nothing); on_token: sees each token as soon as it is known; if it
        raises, the request has failed. ArgumentError for what could never run."""
        self._owner.check("a request")
        if self._ended:
            raise ModelError(f"the scheduler takes no requests: {self._ended}")
        ids = self._prompt(prompt)
        limit = whole("max_tokens", max_tokens, 1)
        ends = self.tokenizer.eos_ids if stop_tokens is None else tokens("stop_tokens", stop_tokens, self.engine.vocab)
        sampler = Sampler() if sampler is None else instance("sampler", sampler, Sampler)
        sampler.adjustments.require(self.engine.vocab)
        seed = sampler.seed if seed is None else whole("seed", seed, 0, MAX_SEED)
        seed = secrets.randbits(64) if seed is None else seed
        if on_token is not None and not callable(on_token):
            raise ArgumentError(f"on_token is {described(on_token)}; allowed: a function of a token id")
        self._check_pages(len(ids), limit)
        stops = StopStrings(stop)
        pieces = self.tokenizer.stream() if stops.any or self.tokenizer.has_text else None
        sequence = TokenSequence(
            number=self._arrived,
            prompt=tuple(ids),
            limits=Limits(limit, frozenset(ends), self.engine.context),
            sampler=sampler.with_seed(seed),
            seed=seed,
            text=AnswerText(pieces, stops),
            table=PageTable(self.pool),
            on_token=on_token,
            guide=None if grammar is None else self._guide(grammar, ends),
            top=None if logprobs is None else whole("logprobs", logprobs, 0),
        )
        if self._draft is not None and sequence.is_greedy:
            sequence.drafter = self._draft()
        self._arrived += 1
        self._batch.queue.append(sequence)
        return Request(self, sequence)

    def step(self) -> bool:
        """Run one step of the engine, unless nothing is there to run. Whether anything is left to do.

        If all that runs decodes greedily, without drafts, the next step is started before the tokens of this one were read, and
        the next call delivers it: what arrives meanwhile gets its rows one step later. Rows of sequences that have ended by
        then do not count.

        If the engine raises an Exception, the sequences that had rows in the step have failed with it, their pages go back, and
        the others go on; after DeviceFailed all have failed, and nothing can be submitted. Anything else that is raised
        (Ctrl-C) passes through, and the next step does again what was not done. ModelError in a callback of this scheduler."""
        self._owner.check("a step of the scheduler")
        with self._step():
            if self._model != self.engine.model:  # what was computed with another one must not be found
                self.pool.forget()
                self._model = self.engine.model
                self._ahead = None
            self._batch.admit()
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead.is_next:
                self._finish(ahead.shares, ahead.scores)
            else:
                self._plan_and_run()
        return bool(self._batch.running or self._batch.queue)

    def run(self) -> None:
        """Steps until all sequences have finished."""
        while self.step():
            pass

    async def turn(self) -> None:
        """Wait until one more step has run. The first task that waits runs it; between two steps the event loop goes round."""
        if self._turn is not None:
            await asyncio.shield(self._turn)
            return
        turn = self._turn = asyncio.get_running_loop().create_future()
        try:
            self.step()
            await asyncio.sleep(0)
        finally:
            self._turn = None
            turn.set_result(None)

    def cancel(self, sequence: TokenSequence) -> bool:
        """End a sequence now. Whether it had not finished yet. `Request.cancel` is what users call."""
        self._owner.check("a cancellation")
        if sequence.state == "finished":
            return False
        self._end(sequence, "cancelled")
        return True

    def status(self) -> SchedulerStatus:
        """What it has and did."""
        return SchedulerStatus(
            queued=len(self._batch.queue),
            running=len(self._batch.running),
            finished={reason: count for reason, count in self._finished.items() if count},
            waiting=self._batch.queue[0].waiting if self._batch.queue else "",
            pages_held=self.pool.held,
            pages_idle=self.pool.idle,
            pages_free=self.pool.free,
            preemptions=self._batch.preemptions,
            steps=self._steps,
            rows=self._rows,
            prompt_rows=self._prompt_rows,
            drafted_tokens=self._drafted,
            accepted_tokens=self._agreed,
        )

    def close(self) -> None:
        """Cancel all sequences; nothing can be submitted any more. ModelError in a callback."""
        self._owner.check("closing the scheduler")
        with self._step():
            self._ended = self._ended or "it is closed"
            for sequence in (*self._batch.queue, *self._batch.running):
                self._end(sequence, "cancelled")
            self._ahead = None
            self.pool.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _step(self) -> Iterator[None]:
        if self._stepping:
            raise ModelError("the scheduler is in the middle of a step; a callback may submit and cancel, and nothing else")
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def _guide(self, grammar: object, ends: Collection[int]) -> GrammarGuide:
        chosen = instance("grammar", grammar, Grammar, "Grammar.json_schema, .regex or .lark")
        return GrammarGuide(chosen, instance("the scheduler's tokenizer", self.tokenizer, Tokenizer), ends)

    def _prompt(self, prompt: object) -> list[int]:
        ids = self.tokenizer.encode(prompt, parse_special=False) if isinstance(prompt, str) else prompt
        ids = tokens("the prompt", ids, self.engine.vocab)
        if not ids:
            raise ArgumentError("the prompt has no tokens; give at least one")
        if len(ids) > self.engine.context:
            raise ArgumentError(f"the prompt has {len(ids)} tokens, the context holds {self.engine.context}")
        return ids

    def _check_pages(self, prompt: int, max_tokens: int) -> None:
        """The last token of an answer is not computed, so it needs no room."""
        positions = min(prompt + max_tokens - 1, self.engine.context)
        needed, pages, length = self.pool.pages_for(positions), self.pool.pages, self.pool.page_len
        if needed > pages:
            raise ArgumentError(
                f"{prompt} tokens of prompt and {max_tokens} of answer need {needed} pages of {length} positions, and the "
                f"cache has {pages}; allowed: together up to {pages * length + 1} tokens"
            )

    def _with_draft(self, share: Share, left: int) -> Share:
        """With a draft in rows that are left over and pages that nobody else needs now, if somebody guesses one."""
        sequence, table = share.sequence, share.sequence.table
        room = table.room + self.pool.available * self.pool.page_len - len(sequence.tokens)
        most = min(left, sequence.reach, sequence.left - 1, room)
        if not share.decodes or sequence.drafter is None or most < 1:
            return share
        draft = tokens("the draft", sequence.drafter.propose(sequence.tokens, most), self.engine.vocab)[:most]
        table.reserve(len(sequence.tokens) + len(draft))
        return Share(sequence, share.tokens, 1 + len(draft), draft)

    def _with_drafts(self, shares: list[Share]) -> list[Share]:
        left = self.engine.rows - sum(share.rows for share in shares)
        drafted: list[Share] = []
        for share in shares:
            try:
                drafted.append(self._with_draft(share, left))
            except Exception as error:
                self._fail(share.sequence, error)
            else:
                left -= len(drafted[-1].draft)
        return drafted

    def _plan_and_run(self) -> None:
        planned = self._batch.plan()
        if self._batch.queue and not planned:
            raise ModelError(f"no sequence can run: {self.pool.held} of {self.pool.pages} pages are held by others")
        if shares := planned if self._draft is None else self._with_drafts(planned):
            self._finish(shares, self._started(shares))

    def _started(self, shares: list[Share]) -> Scores | Exception:
        """The scores of a step, or why it has failed."""
        rows: list[Row] = []
        for share in shares:
            sequence = share.sequence
            rows += rows_of(sequence.slot, [*share.tokens, *share.draft], sequence.computed, share.scored)
        try:
            self._set_tables(share.sequence for share in shares)
            return self.engine.step(rows)
        except Exception as error:
            return error

    def _start_next(self, shares: list[Share]) -> None:
        """Start the step after one that was started, if it is already certain which rows it has: those of sequences that all
        decode greedily and go on, as far as their tokens are not the last ones by what these are."""
        sequences = [share.sequence for share in shares]
        if self._draft is not None or not all(share.decodes for share in shares) or sequences != self._batch.running:
            return
        if not all(sequence.is_greedy and sequence.left > 1 for sequence in sequences):
            return
        lengths = [len(sequence.tokens) + 1 for sequence in sequences]
        needed = sum(sequence.table.missing(length) for sequence, length in zip(sequences, lengths, strict=True))
        if needed > self.pool.available:
            return
        scores: Scores | Exception | None
        try:
            for sequence, length in zip(sequences, lengths, strict=True):
                sequence.table.reserve(length)
            self._set_tables(sequences)
            scores = self.engine.step_ahead()
        except Exception as error:
            scores = error  # of the step that was not to come before this one's tokens are delivered
        if scores is not None:
            self._ahead = _Ahead(shares, lengths, scores)

    def _finish(self, shares: list[Share], scores: Scores | Exception) -> None:
        """Deliver what came out of a step that was started; start the next one before that is read, if there is no doubt."""
        try:
            if isinstance(scores, Exception):
                raise scores
            self._start_next(shares)
            self._prepare_guides(shares)
            greedy = scores.greedy() if any(share.scored and share.sequence.is_greedy for share in shares) else []
        except Exception as error:
            self._fail_step(shares, error)
            return
        self._steps += 1
        counted = [share for share in shares if share.sequence.state == "running"]
        self._rows += sum(share.rows for share in counted)
        self._prompt_rows += sum(share.rows for share in counted if not share.decodes)
        at = 0
        for share in shares:
            if share.sequence.state == "running":  # no callback of this step has cancelled it
                self._deliver(share, scores, at, greedy)
            at += share.scored

    def _prepare_guides(self, shares: list[Share]) -> None:
        """Find out which tokens may come next, beside the device, which computes the logits meanwhile.

        A grammar that is given up fails its own sequence alone.
        """
        for share in shares:
            guide = share.sequence.guide
            if share.scored and guide is not None and share.sequence.state == "running":
                try:
                    guide.prepare()
                except Exception as error:
                    self._fail(share.sequence, error)

    def _set_tables(self, sequences: Iterable[TokenSequence]) -> None:
        for sequence in sequences:
            if sequence.uploaded != sequence.table.version:
                self.engine.set_table(sequence.slot, sequence.table.pages)
                sequence.uploaded = sequence.table.version

    def _deliver(self, share: Share, scores: Scores, at: int, greedy: list[int]) -> None:
        """Move a sequence on by its rows of a step that has run; its scores begin at `at`."""
        sequence = share.sequence
        if share.scored:
            try:
                self._answer(share, scores, at, greedy)
            except Exception as error:
                self._fail(sequence, error)
        else:
            sequence.computed += len(share.tokens)
        if sequence.state == "running":
            sequence.table.publish(sequence.tokens, sequence.computed)
            if share.draft:
                sequence.table.truncate(len(sequence.tokens))

    def _answer(self, share: Share, scores: Scores, at: int, greedy: list[int]) -> None:
        sequence = share.sequence
        if sequence.is_greedy:
            found = accepted(share.draft, greedy[at : at + share.scored])
        else:
            found = [sequence.chosen(scores.logits(at))]
        if share.draft:
            self._drafted += len(share.draft)
            sequence.learn(len(share.draft), len(found) - 1)
        for drafted, token in zip_longest(share.draft[: len(found)], found):
            stopped = sequence.accept(token)
            if stopped is not None:  # before the callback: whatever that does, it is over
                sequence.table.publish(sequence.tokens, len(sequence.tokens) - (stopped != "eos"))
                self._end(sequence, stopped)
            if stopped != "eos":
                sequence.agreed += token == drafted
                self._agreed += token == drafted
                if sequence.on_token is not None:
                    sequence.on_token(token)
            if sequence.state != "running":
                return

    def _fail_step(self, shares: list[Share], error: Exception) -> None:
        _log.error("a step with rows of requests %s failed", [share.sequence.number for share in shares])
        failed = [share.sequence for share in shares if share.sequence.state == "running"]
        if isinstance(error, DeviceFailed):
            self._ended = f"its device has failed: {error}"
            failed = [*self._batch.running, *self._batch.queue]
        for sequence in failed:
            self._fail(sequence, error)

    def _fail(self, sequence: TokenSequence, error: Exception) -> None:
        _log.error("request %d failed: %s", sequence.number, error)
        self._end(sequence, "failed", error)

    def _end(self, sequence: TokenSequence, stopped: Stopped, error: Exception | None = None) -> None:
        if sequence.stopped is not None:  # its callback failed at the last token
            self._finished.subtract([sequence.stopped])
        self._batch.remove(sequence)
        sequence.end(stopped, error)
        self._finished[stopped] += 1
