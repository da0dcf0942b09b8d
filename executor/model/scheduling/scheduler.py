"""Many sequences over one paged cache: requests in, steps, answers out. What is asked is checked in arrival.py, who runs in
which rows is decided in continuous_batch.py, steps are started by step_start.py; the steps themselves are the engine's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import tokens, whole
from executor.base.errors import DeviceFailed, ModelError
from executor.base.progress import Progress
from executor.device.owner import OwnerThread
from executor.memory.page_pool import PagePool
from executor.model.sampling import Sampler
from executor.model.scheduling.arrival import RequestSettings, TextTokens, new_sequence
from executor.model.scheduling.continuous_batch import ContinuousBatch, StepShare
from executor.model.scheduling.request import Request
from executor.model.scheduling.status import SchedulerStatus, Tally
from executor.model.scheduling.step_start import BatchAhead, StepStarter
from executor.model.scheduling.token_sequence import Stopped, TokenSequence
from executor.model.scheduling.verify import Drafter, accepted
from executor.model.step import Allowed, Draw, Scores, StepEngine
from executor.text.grammar import Grammar, compute_together
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER

_log = logging.getLogger(__name__)


class Scheduler:
    """Runs sequences that come and go at any time, in the order of arrival; belongs to the thread of its device.

    A step has one row for each sequence that decodes; its other rows go to prompts, and what is left to drafts. Where all
    decode, and steps of fewer rows make more tokens a second (StepEngine.paying_rows), they take turns. Pages of equal
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
        self.pool = PagePool(engine.pages, engine.page_len, window=engine.window, window_pages=engine.window_pages)
        self._starter = StepStarter(engine, self.pool)
        self._model = engine.model
        self._draft = draft
        self._owner = owner or OwnerThread("the scheduler")
        self._batch = ContinuousBatch(
            self.pool, min(engine.slots, engine.rows), engine.rows, self.prompt_rows, engine.paying_rows
        )
        self._arrived = 0
        self._tally = Tally()
        self._ahead: BatchAhead | None = None
        self._stepping = False
        self._turn: asyncio.Future[None] | None = None
        self._ended = ""  # why nothing can run any more

    @property
    def ended(self) -> str:
        """Why nothing can be submitted any more; empty while something can."""
        return self._ended

    def prepare(self, progress: Progress | None = None) -> None:
        """Have all ready that most steps need, which else each first step of a size makes while those who are answered wait:
        seconds where kernels are compiled. Errors of the engine."""
        self._owner.check("preparing steps")
        with self._step():
            self.engine.prepare(progress)

    def submit(
        self,
        prompt: str | Sequence[int] | NDArray[np.integer[Any]],
        *,
        max_tokens: int,
        sampler: Sampler | None = None,
        seed: int | None = None,
        stop: str | Collection[str] = (),
        stop_tokens: Collection[int] | None = None,
        spelt: Collection[int] = (),
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Request:
        """Queue a sequence: text or token ids, continued by at most `max_tokens` tokens. Control tokens are not looked for in
        a text.

        sampler: its settings count (default: greedy), drawn with `seed`, else with its own seed, else with a new one;
        stop: strings before which the text ends, also those that are or have control tokens, which the text itself does
        not show; stop_tokens: tokens that end it (default: the vocabulary's ends); spelt: control tokens that the text
        shows; grammar: what the text must be, as far as it goes; logprobs: how many of the likeliest tokens of each place
        are reported with their probabilities (0: those of the answer alone; None: nothing); prompt_logprobs: the same of the
        prompt's tokens after the first, none of which is taken from pages then (max_tokens may be 0); on_token: sees each
        token as soon as it is known; if it raises, the request has failed. ArgumentError for what could never run."""
        self._owner.check("a request")
        if self._ended:
            raise ModelError(f"the scheduler takes no requests: {self._ended}")
        settings = RequestSettings(
            max_tokens=max_tokens,
            sampler=sampler,
            seed=seed,
            stop=stop,
            stop_tokens=stop_tokens,
            spelt=spelt,
            grammar=grammar,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            on_token=on_token,
        )
        sequence = new_sequence(self._arrived, self.engine, self.pool, self.tokenizer, prompt, settings)
        if self._draft is not None and sequence.is_greedy:
            sequence.drafter = self._draft()
        self._arrived += 1
        self._batch.queue.append(sequence)
        return Request(self, sequence)

    def step(self) -> bool:
        """Run one step of the engine, unless nothing is there to run. Whether anything is left to do.

        If the tokens of all that runs are chosen on the device, without drafts, the next step is started before they were read,
        and the next call delivers it: what arrives meanwhile gets its rows one step later. Rows of sequences that have ended by
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
        return SchedulerStatus.of(self._batch, self.pool, self._tally)

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

    def _with_draft(self, share: StepShare, left: int) -> StepShare:
        """With a draft in free rows and pages that no other sequence needs now, if there is a drafter."""
        sequence, table = share.sequence, share.sequence.table
        room = table.room + self.pool.available * self.pool.page_len - len(sequence.tokens)
        most = min(left, sequence.reach, sequence.left - 1, room)
        if not share.decodes or sequence.drafter is None or most < 1:
            return share
        draft = tokens("the draft", sequence.drafter.propose(sequence.tokens, most), self.engine.vocab)[:most]
        table.reserve(len(sequence.tokens) + len(draft))
        return StepShare(sequence, share.tokens, 1 + len(draft), draft)

    def _with_drafts(self, shares: list[StepShare]) -> list[StepShare]:
        left = self.engine.rows - sum(share.rows for share in shares)
        drafted: list[StepShare] = []
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
            self._finish(shares, self._starter.start(shares))

    def _finish(self, shares: list[StepShare], scores: Scores | Exception) -> None:
        """Deliver what came out of a step that was started; start the next one before that is read, if there is no doubt."""
        try:
            if isinstance(scores, Exception):
                raise scores
            self._draw_tokens(shares, scores)
            self._ahead = None if self._draft is not None else self._starter.start_ahead(shares, self._batch.next_in_turn)
            wanted = any(share.scored and share.sequence.is_chosen_on_device for share in shares)
            chosen = scores.chosen() if wanted else []
        except Exception as error:
            self._fail_step(shares, error)
            return
        self._tally.count_step(shares)
        at = 0
        for share in shares:
            if share.sequence.state == "running":  # no callback of this step has cancelled it
                self._deliver(share, scores, at, chosen)
            at += share.scored

    def _draw_tokens(self, shares: Sequence[StepShare], scores: Scores) -> None:
        """Have tokens drawn, and chosen among those that are allowed, where the logits are, by the place of the row among the
        scored ones. What grammars allow is found out here, beside the device, which computes the logits meanwhile; a grammar
        that is given up fails its own sequence alone."""
        guides = [share.sequence.guide for share in shares if share.scored and share.sequence.state == "running"]
        compute_together([guide for guide in guides if guide is not None])
        draws: dict[int, Draw] = {}
        allowed: dict[int, Allowed] = {}
        at = 0
        for share in shares:
            if share.scored and share.sequence.state == "running":
                self._add_choice(share.sequence, at, draws, allowed)
            at += share.scored
        if draws or allowed:
            scores.draw(draws, allowed)

    def _add_choice(self, sequence: TokenSequence, at: int, draws: dict[int, Draw], allowed: dict[int, Allowed]) -> None:
        """How the token after the scored row `at` is chosen, if argmax does not do it."""
        if sequence.guide is not None:
            try:
                bits = sequence.guide.allowed(self.engine.vocab)
            except Exception as error:
                self._fail(sequence, error)
                return
            if sequence.is_chosen_on_device:
                allowed[at] = bits
        if (draw := sequence.draw) is not None:
            draws[at] = draw

    def _deliver(self, share: StepShare, scores: Scores, at: int, chosen: list[int]) -> None:
        """Move a sequence on by its rows of a step that has run; its scores begin at `at`."""
        sequence = share.sequence
        if share.scored:
            try:
                self._answer(share, scores, at, chosen)
            except Exception as error:
                self._fail(sequence, error)
        else:
            sequence.computed += len(share.tokens)
        if sequence.state == "running":
            sequence.table.publish(sequence.tokens, sequence.computed)
            if share.draft:
                sequence.table.truncate(len(sequence.tokens))
            sequence.table.leave(sequence.computed)

    def _answer(self, share: StepShare, scores: Scores, at: int, chosen: list[int]) -> None:
        sequence = share.sequence
        if sequence.scores_prompt:
            for row in range(share.scored):
                sequence.score_prompt(sequence.computed + row, scores.logits(at + row))
            if len(share.tokens) < sequence.pending:
                sequence.computed += len(share.tokens)
                return
            at += share.scored - 1
        if not sequence.limits.max_tokens:
            sequence.table.publish(sequence.tokens, len(sequence.tokens))
            self._end(sequence, "length")
            return
        if sequence.is_greedy:
            found = accepted(share.draft, chosen[at : at + share.scored])
        elif sequence.is_chosen_on_device:
            if chosen[at] == NOT_A_NUMBER:
                raise ModelError("the logits cannot be sampled: they hold NaN, or the largest of them is infinite")
            if sequence.draw is not None:
                sequence.sampler.draws += 1
            found = chosen[at : at + 1]
        else:
            found = [sequence.chosen(scores.logits(at))]
        if share.draft:
            self._tally.drafted_tokens += len(share.draft)
            sequence.learn(len(share.draft), len(found) - 1)
        for drafted, token in zip_longest(share.draft[: len(found)], found):
            stopped = sequence.accept(token)
            if stopped is not None:  # before the callback: whatever that does, it is over
                sequence.table.publish(sequence.tokens, len(sequence.tokens) - (stopped != "eos"))
                self._end(sequence, stopped)
            if stopped != "eos":
                sequence.agreed += token == drafted
                self._tally.accepted_tokens += token == drafted
                if sequence.on_token is not None:
                    sequence.on_token(token)
            if sequence.state != "running":
                return

    def _fail_step(self, shares: list[StepShare], error: Exception) -> None:
        _log.error("a step with rows of requests %s failed", [share.sequence.number for share in shares])
        failed = [share.sequence for share in shares if share.sequence.state == "running"]
        if isinstance(error, DeviceFailed):
            self._ended = f"its device has failed: {error}"
            failed = [*self._batch.running, *self._batch.queue]
        for sequence in failed:
            self._fail(sequence, error)

    def _fail(self, sequence: TokenSequence, error: Exception) -> None:
        level = logging.INFO if isinstance(error, ArgumentError) else logging.ERROR  # the request's fault, or the server's
        _log.log(level, "request %d failed: %s", sequence.number, error)
        self._end(sequence, "failed", error)

    def _end(self, sequence: TokenSequence, stopped: Stopped, error: Exception | None = None) -> None:
        self._tally.count_end(sequence, stopped)
        self._batch.remove(sequence)
        sequence.end(stopped, error)
