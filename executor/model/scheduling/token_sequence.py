"""One sequence of a scheduler: its tokens, how far they are computed, its pages, and when it has ended. What runs when is
decided in scheduler.py; users hold a Request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from executor.memory.page_pool import PageTable
from executor.model.logprobs import TokenLogprob, token_logprob
from executor.model.sampling import Sampler
from executor.model.scheduling.answer_text import AnswerText
from executor.model.scheduling.prompt_lookup import MAX_DRAFT
from executor.model.scheduling.verify import Drafter
from executor.model.step import Draw
from executor.text.grammar import GrammarGuide

State = Literal["queued", "running", "finished"]
Stopped = Literal["eos", "stop", "grammar", "length", "context", "cancelled", "failed"]
Waiting = Literal["", "turn", "slot", "pages"]
"""What a queued sequence waits for: those before it, a place in the step, or pages."""


@dataclass(frozen=True)
class AnswerPiece:
    """A step forward of an answer. token: None where only text was left; text: what became certain, maybe nothing."""

    token: int | None
    text: str


@dataclass(frozen=True)
class Usage:
    """What a sequence took. prompt_tokens: of which cached_prompt_tokens were not computed, because their pages were there;
    answer_tokens: of which accepted_tokens came from drafts, which had drafted_tokens; preemptions: how often its pages were
    taken away and computed again."""

    prompt_tokens: int
    cached_prompt_tokens: int
    answer_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int


@dataclass(frozen=True)
class SequenceLimits:
    """When an answer ends. max_tokens: of it, 0 for none; ends: tokens that end it and are no part of it; context: most
    positions of the sequence."""

    max_tokens: int
    ends: frozenset[int]
    context: int


@dataclass(eq=False)
class TokenSequence:
    """Its state while it is queued, runs, and after. number: in the order of arrival; seed: of its sampler, which nobody else
    draws from; computed: leading positions whose keys and values are in its pages; error: why it failed."""

    number: int
    prompt: tuple[int, ...]
    limits: SequenceLimits
    sampler: Sampler
    seed: int
    text: AnswerText
    table: PageTable
    on_token: Callable[[int], None] | None = None
    drafter: Drafter | None = None
    guide: GrammarGuide | None = None
    top: int | None = None  # how many likeliest tokens are reported at each position; None: no probabilities
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_top: int | None = None  # as `top`, of the tokens of the prompt after the first
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: list[int] = field(init=False)
    pieces: list[AnswerPiece] = field(default_factory=list)
    state: State = "queued"
    waiting: Waiting = "turn"
    stopped: Stopped | None = None
    error: Exception | None = None
    slot: int = -1  # while it runs
    computed: int = 0
    uploaded: int = -1  # the version of the table that the engine has
    cached: int = 0
    reach: int = MAX_DRAFT  # most tokens of its next draft
    drafted: int = 0
    agreed: int = 0
    preemptions: int = 0
    turn: int = 0  # in which it had rows last, of those that not all have (ContinuousBatch)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def is_greedy(self) -> bool:
        """Whether its next token is the likeliest one, whatever was said before, and nothing else is wanted of the logits."""
        return self.is_chosen_on_device and self.sampler.is_greedy and self.guide is None

    @property
    def is_chosen_on_device(self) -> bool:
        """Whether its next token is chosen where the logits are, among those that its guide allows if it has one: nobody
        adjusts them, and nothing else is wanted of them."""
        return not self.sampler.adjustments.any and self.top is None and self.prompt_top is None

    @property
    def scores_prompt(self) -> bool:
        """Whether the probabilities of tokens of its prompt are still to be found, by the logits of all rows before them."""
        return self.prompt_top is not None and len(self.prompt_logprobs) < len(self.prompt) - 1

    def score_prompt(self, at: int, logits: NDArray[np.float32]) -> None:
        """The logits after the prompt's token `at`. Those that were seen before a preemption change nothing."""
        if self.prompt_top is not None and at == len(self.prompt_logprobs) < len(self.prompt) - 1:
            self.prompt_logprobs.append(token_logprob(logits, self.prompt[at + 1], self.prompt_top))

    @property
    def draw(self) -> Draw | None:
        """How its next token is drawn, if that is done where the logits are."""
        return Draw.of(self.sampler) if self.is_chosen_on_device else None

    def chosen(self, logits: NDArray[np.float32]) -> int:
        """The token after all so far by these logits, chosen on the host."""
        allowed = logits if self.guide is None else self.guide.restricted(logits)
        token = self.sampler.sample(allowed, self.prompt, self.answer)
        if self.top is not None and token not in self.limits.ends:
            self.logprobs.append(token_logprob(logits, token, self.top))
        return token

    @property
    def answer(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[len(self.prompt) :]

    @property
    def pending(self) -> int:
        """How many tokens are to be computed: one while it decodes, more in a prompt and after a preemption; 0 never."""
        return len(self.tokens) - self.computed

    @property
    def reusable(self) -> int:
        """Leading positions that may be taken from others: what runs in any case, for its logits, is the last token, and a
        prompt whose probabilities are wanted."""
        return 0 if self.scores_prompt else len(self.tokens) - 1

    @property
    def left(self) -> int:
        """How many more tokens the answer may have, all its limits counted but the end of text."""
        answered = len(self.tokens) - len(self.prompt)
        return min(self.limits.max_tokens - answered, self.limits.context - len(self.tokens) + 1)

    def start(self, slot: int) -> None:
        """It got a slot and the pages of its table."""
        self.state, self.waiting, self.slot, self.computed = "running", "", slot, 0
        self.reuse()

    def reuse(self) -> None:
        """Continue after the pages that others have computed."""
        known = self.table.adopt(self.tokens, self.reusable)
        if known > self.computed:
            if not self.preemptions:
                self.cached += known - self.computed
            self.computed = known

    def suspend(self) -> None:
        """Give slot and pages up; its tokens stay."""
        self.table.release()
        self.state, self.waiting = "queued", "turn"
        self.preemptions += 1

    def accept(self, token: int) -> Stopped | None:
        """The token after all so far, which are computed. Returns why it is the last one, if it is; for "eos" it is no part of
        the answer."""
        if token in self.limits.ends:
            self._finish_text(token)
            return "eos"
        if self.guide is not None:
            self.guide.accept(token)
        text = self.text.push(token)
        if self.top is not None:
            self.logprobs[-1] = replace(self.logprobs[-1], start=self.text.start)
        self.tokens.append(token)
        self.computed = len(self.tokens) - 1
        stopped = self._stopped()
        if stopped is not None:
            text += self.text.finish()
        self.pieces.append(AnswerPiece(token, text))
        return stopped

    def learn(self, drafted: int, right: int) -> None:
        """So many tokens of a draft were right. A draft that was right all through may be twice as long the next time, another
        one token longer than what was right: rows that are thrown away cost time."""
        self.drafted += drafted
        self.reach = min(MAX_DRAFT, 2 * self.reach if right == drafted else right + 1)

    def end(self, stopped: Stopped, error: Exception | None = None) -> None:
        """It is over, for this reason."""
        self.state, self.waiting, self.stopped, self.error = "finished", "", stopped, error
        self._finish_text()

    def usage(self) -> Usage:
        """What it took so far."""
        answered = len(self.tokens) - len(self.prompt)
        return Usage(len(self.prompt), self.cached, answered, self.drafted, self.agreed, self.preemptions)

    def _finish_text(self, end: int | None = None) -> None:
        if rest := self.text.finish(end):
            self.pieces.append(AnswerPiece(None, rest))

    def _stopped(self) -> Stopped | None:
        """Why the token that came last is the last one."""
        if self.text.stopped:
            return "stop"
        if self.guide is not None and self.guide.finished:
            return "grammar"
        if len(self.tokens) - len(self.prompt) == self.limits.max_tokens:
            return "length"
        return "context" if self.computed == self.limits.context else None
