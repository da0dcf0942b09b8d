"""What a scheduler has and did, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from executor.memory.page_pool import PagePool
from executor.model.scheduling.continuous_batch import ContinuousBatch, StepShare
from executor.model.scheduling.token_sequence import Stopped, TokenSequence, Waiting


@dataclass
class Tally:
    """What a scheduler did since it was made. The counts are those of SchedulerStatus."""

    steps: int = 0
    rows: int = 0
    prompt_rows: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: Counter[Stopped] = field(default_factory=Counter)

    def count_step(self, shares: Iterable[StepShare]) -> None:
        """A step has run. Rows of sequences that have ended meanwhile do not count."""
        self.steps += 1
        for share in shares:
            if share.sequence.state == "running":
                self.rows += share.rows
                self.prompt_rows += 0 if share.decodes else share.rows

    def count_end(self, sequence: TokenSequence, stopped: Stopped) -> None:
        """The sequence ends now, for this reason, whatever it ended for before: its callback may fail at its last token."""
        if sequence.stopped is not None:
            self.finished.subtract([sequence.stopped])
        self.finished[stopped] += 1


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

    @classmethod
    def of(cls, batch: ContinuousBatch, pool: PagePool, tally: Tally) -> Self:
        """Of a scheduler with these."""
        return cls(
            queued=len(batch.queue),
            running=len(batch.running),
            finished={reason: count for reason, count in tally.finished.items() if count},
            waiting=batch.queue[0].waiting if batch.queue else "",
            pages_held=pool.held,
            pages_idle=pool.idle,
            pages_free=pool.free,
            preemptions=batch.preemptions,
            steps=tally.steps,
            rows=tally.rows,
            prompt_rows=tally.prompt_rows,
            drafted_tokens=tally.drafted_tokens,
            accepted_tokens=tally.accepted_tokens,
        )
