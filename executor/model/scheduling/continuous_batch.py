"""Which sequences run and which wait: slots and pages given and taken back, and the rows that each one gets in a step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from executor.choice.thresholds import TURN
from executor.memory.page_pool import PagePool
from executor.model.scheduling.token_sequence import TokenSequence, Waiting

SCORED_ROWS: Final = 32
"""Most rows of a step whose logits are wanted for the probabilities of a prompt: each takes four bytes for every token of the
vocabulary."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepShare:
    """The rows of one sequence in a step: tokens after its computed ones, and a draft of what may follow; the last `scored` of
    them all are scored."""

    sequence: TokenSequence
    tokens: Sequence[int]
    scored: int
    draft: Sequence[int] = ()

    @property
    def rows(self) -> int:
        """How many they are."""
        return len(self.tokens) + len(self.draft)

    @property
    def decodes(self) -> bool:
        """Whether its one token is the last one that the sequence has."""
        return len(self.tokens) == 1 == self.scored - len(self.draft)


@dataclass(frozen=True)
class SchedulerTurn:
    """Sequences that have the steps until the first of them has so many tokens, while the others wait."""

    sequences: list[TokenSequence]
    end: int

    @property
    def over(self) -> bool:
        """Whether others are next."""
        return any(sequence.state != "running" for sequence in self.sequences) or len(self.sequences[0].tokens) >= self.end


class ContinuousBatch:
    """The sequences of a scheduler in the order of arrival: `running` ones all arrived before those in `queue`. slots: how many
    can run; rows: most of a step, at least one a slot; prompt_rows: most of them for prompts; paying: of so many that decode,
    how many a step takes, as StepEngine.paying_rows."""

    def __init__(
        self, pool: PagePool, slots: int, rows: int, prompt_rows: int, paying: Callable[[int], int] = lambda waiting: waiting
    ) -> None:
        self.pool = pool
        self.rows = rows
        self.prompt_rows = prompt_rows
        self.queue: deque[TokenSequence] = deque()
        self.running: list[TokenSequence] = []
        self.preemptions = 0
        self._slots = list(range(slots))[::-1]
        self._paying = paying
        self._turn: SchedulerTurn | None = None
        self._turns = count(1)

    def remove(self, sequence: TokenSequence) -> None:
        """It runs and waits no more. What it has computed is found until the pages are needed."""
        if sequence.state == "running":
            self._leave(sequence)
            sequence.table.release()
        elif sequence.state == "queued":
            self.queue.remove(sequence)

    def admit(self) -> None:
        """Let those run for which there is a slot, and pages for all their tokens, in the order of arrival."""
        while self.queue:
            sequence = self.queue[0]
            if not self._slots:
                self._wait(sequence, "slot", f"all {len(self.running)} are taken")
                return
            sequence.table.adopt(sequence.tokens, sequence.reusable)
            missing = sequence.table.missing(len(sequence.tokens))
            spare = len(self.running)  # or it would take the pages that these need next, and soon be preempted itself
            if missing + spare > self.pool.available:
                sequence.table.release()
                self._wait(sequence, "pages", f"{missing} and {spare} to spare are needed, {self.pool.available} available")
                return
            sequence.table.reserve(len(sequence.tokens))
            sequence.start(self._slots.pop())
            self.queue.popleft()
            self.running.append(sequence)

    def plan(self) -> list[StepShare]:
        """The rows of a step, without drafts: one for each sequence that decodes, then those of prompts, few before many, since
        rows before a short run attend on their own (RowSteps). Where all decode, and fewer rows make more tokens a second, so
        many have a turn of some steps, then those that have waited longest. If there is no page for one that decodes, the
        youngest gives its own back and is queued again."""
        for sequence in self.running:
            if sequence.pending > 1:
                sequence.reuse()
        decoding = [sequence for sequence in self.running if sequence.pending == 1]
        if decoding and len(decoding) == len(self.running):
            decoding = self._in_turn(decoding)
        shares = [StepShare(sequence, sequence.tokens[-1:], 1) for sequence in decoding if self._make_room(sequence)]
        prompts = self._prompts(min(self.prompt_rows, self.rows - len(shares)))
        return shares + sorted(prompts, key=lambda share: share.rows)

    @property
    def next_in_turn(self) -> list[TokenSequence]:
        """Those that have the step after the one that runs, if all go on by one token; none where that is not certain."""
        turn = self._turn
        if turn is None:
            return self.running
        certain = not turn.over and len(turn.sequences[0].tokens) + 1 < turn.end
        return turn.sequences if certain and all(sequence.pending == 1 for sequence in self.running) else []

    def _in_turn(self, decoding: list[TokenSequence]) -> list[TokenSequence]:
        """Of all that run, which decode, those that have the next step."""
        rows = self._paying(len(decoding))
        if rows >= len(decoding):
            self._turn = None
            return decoding
        if self._turn is None or self._turn.over or len(self._turn.sequences) != rows:
            next_ones = sorted(decoding, key=lambda sequence: sequence.turn)[:rows]
            for sequence in next_ones:
                sequence.turn = next(self._turns)
            self._turn = SchedulerTurn(next_ones, len(next_ones[0].tokens) + TURN)
        return self._turn.sequences

    def _wait(self, sequence: TokenSequence, what: Waiting, why: str) -> None:
        if sequence.waiting != what:
            sequence.waiting = what
            _log.info("request %d waits for %s: %s; %d are queued", sequence.number, what, why, len(self.queue))

    def _make_room(self, sequence: TokenSequence) -> bool:
        """A page for its next position, if need be one of the youngest. False if that is itself, or it gave way before."""
        while sequence.state == "running":
            missing = sequence.table.missing(len(sequence.tokens))
            if not missing:
                return True
            if missing <= self.pool.available:
                sequence.table.reserve(len(sequence.tokens))
                return True
            self._preempt(self.running[-1])
        return False

    def _preempt(self, sequence: TokenSequence) -> None:
        self._leave(sequence)
        sequence.suspend()
        self.queue.appendleft(sequence)
        self.preemptions += 1
        _log.info("request %d gives its pages back and is queued again with %d tokens", sequence.number, len(sequence.tokens))

    def _prompts(self, left: int) -> list[StepShare]:
        """At most `left` rows of prompts. A sequence whose next page another one completes in this step waits for that."""
        shares: list[StepShare] = []
        coming: set[object] = set()
        for sequence in self.running:
            if sequence.pending == 1 or not left:
                continue
            tokens, page = sequence.tokens, sequence.table.next_page(sequence.tokens)
            page_end = sequence.table.known + self.pool.page_len
            if page in coming and page_end <= sequence.reusable:
                continue
            most = min(left, SCORED_ROWS) if sequence.scores_prompt else left
            end = min(len(tokens), sequence.computed + most)
            if page_end <= end:
                coming.add(page)
            part = tokens[sequence.computed : end]
            shares.append(StepShare(sequence, part, len(part) if sequence.scores_prompt else int(end == len(tokens))))
            left -= shares[-1].rows
        return shares

    def _leave(self, sequence: TokenSequence) -> None:
        self.running.remove(sequence)
        self._slots.append(sequence.slot)
