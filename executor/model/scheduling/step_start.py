"""Starts steps of an engine: with the rows of shares, and ahead, before the tokens of the step before were read. What comes out
is the scheduler's to deliver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from executor.memory.page_pool import PagePool
from executor.model.scheduling.continuous_batch import StepShare
from executor.model.scheduling.token_sequence import TokenSequence
from executor.model.scheduling.verify import rows_of
from executor.model.step import Row, Scores, StepEngine


@dataclass(frozen=True)
class BatchAhead:
    """A step that was started before the tokens of its rows were read. shares: those of the step before; lengths: how many
    tokens each sequence has by now, if it goes on; scores: what comes out, or why it has failed."""

    shares: list[StepShare]
    lengths: list[int]
    scores: Scores | Exception

    @property
    def is_next(self) -> bool:
        """Whether its rows are those of sequences that run, but for some that have ended. Not after an interrupt that came
        before all tokens were delivered."""
        pairs = zip(self.shares, self.lengths, strict=True)
        left = [(share.sequence, length) for share, length in pairs if share.sequence.state == "running"]
        return bool(left) and all(len(sequence.tokens) == length for sequence, length in left)


class StepStarter:
    """Starts the steps of one engine, whose pages are those of the pool; each sequence's page table is uploaded when it has
    changed."""

    def __init__(self, engine: StepEngine, pool: PagePool) -> None:
        self._engine = engine
        self._pool = pool

    def start(self, shares: Sequence[StepShare]) -> Scores | Exception:
        """The scores of a step, or why it has failed."""
        rows: list[Row] = []
        for share in shares:
            sequence = share.sequence
            rows += rows_of(sequence.slot, [*share.tokens, *share.draft], sequence.computed, share.scored)
        try:
            for share in shares:
                share.sequence.table.reserve_window(share.sequence.computed, share.sequence.computed + share.rows)
            self._set_tables(share.sequence for share in shares)
            return self._engine.step(rows)
        except Exception as error:
            return error

    def start_ahead(self, shares: list[StepShare], following: list[TokenSequence]) -> BatchAhead | None:
        """Start the step after one that was started, if it is already certain which rows it has: those of sequences that all
        decode, whose tokens are chosen on the device, and that go on, as far as these are not the last ones by what they are.
        following: those that have it if all go on; drafts, which are guessed by tokens that were read, there are none."""
        sequences = [share.sequence for share in shares]
        if not all(share.decodes for share in shares) or sequences != following:
            return None
        if not all(sequence.is_chosen_on_device and sequence.left > 1 for sequence in sequences):
            return None
        lengths = [len(sequence.tokens) + 1 for sequence in sequences]
        needed = sum(sequence.table.missing(length) for sequence, length in zip(sequences, lengths, strict=True))
        if needed > self._pool.available:
            return None
        scores: Scores | Exception | None
        try:
            for sequence, length in zip(sequences, lengths, strict=True):
                sequence.table.reserve(length)
                sequence.table.reserve_window(length - 1, length)
            self._set_tables(sequences)
            scores = self._engine.step_ahead()
        except Exception as error:
            scores = error  # of the step that was not to come before this one's tokens are delivered
        return None if scores is None else BatchAhead(shares, lengths, scores)

    def _set_tables(self, sequences: Iterable[TokenSequence]) -> None:
        for sequence in sequences:
            if sequence.uploaded != sequence.table.version:
                self._engine.set_table(sequence.slot, sequence.table.pages, sequence.table.window_pages)
                sequence.uploaded = sequence.table.version
