"""What a step of many rows is: the rows that go in, the scores that come out, and the engine between them. What runs it lives
elsewhere; who fills the rows is scheduler.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from executor.base.progress import Progress
from executor.model.sampling import Sampler


@dataclass(frozen=True, slots=True)
class Row:
    """One token of a step. slot: whose page table counts; position: of the token in its sequence, from 0; scored: whether its
    logits are wanted."""

    slot: int
    token: int
    position: int
    scored: bool


Allowed = NDArray[np.uint32]
"""u32[words] of ptxgen.kernels.token.allowed: which tokens of a vocabulary may come next, at least one."""


@dataclass(frozen=True)
class Draw:
    """How a token is drawn: settings: u32[4], of ptxgen.kernels.token.sampling.settings; key, number: the seed, and the number
    of the draw with it, both below 2^64."""

    settings: NDArray[np.uint32]
    key: int
    number: int

    @classmethod
    def of(cls, sampler: Sampler) -> Draw | None:
        """The next one of a sampler; None if it draws nothing, since the likeliest token is what it takes."""
        return Draw(sampler.settings, sampler.key, sampler.draws % 2**64) if sampler.temperature else None


class Scores(Protocol):
    """What came out of the scored rows of a step, in their order. Valid until the next step; `chosen` until the one after it,
    if the next one is a step ahead."""

    def chosen(self) -> list[int]:
        """The token after each scored row: the likeliest, the lowest id among equals, or what `draw` chose. NOT_A_NUMBER
        of ptxgen/kernels/token/argmax.py where the logits hold NaN, and where nothing could be drawn."""

    def logits(self, index: int) -> NDArray[np.float32]:
        """f32[vocab] of one scored row, counted among the scored ones from 0."""

    def draw(self, draws: Mapping[int, Draw], allowed: Mapping[int, Allowed]) -> None:
        """Have the tokens after these scored rows chosen anew, once, before `chosen` and before a step ahead: drawn, as the
        host's Sampler draws them; among those that are allowed; or both, for a row that is in both. Logits stay as they are."""


class StepEngine(Protocol):
    """Runs steps over sequences whose keys and values stand in pages. A row writes its position into the pages of its slot and
    attends to positions 0 to its own, those that other rows of the same step write included."""

    @property
    def slots(self) -> int:
        """How many page tables there are, so how many sequences can be in one step."""

    @property
    def rows(self) -> int:
        """Most rows of one step."""

    @property
    def vocab(self) -> int:
        """Size of the vocabulary."""

    @property
    def context(self) -> int:
        """Most positions a sequence may have."""

    @property
    def page_len(self) -> int:
        """Positions of a page."""

    @property
    def pages(self) -> int:
        """How many pages there are, numbered from 0."""

    @property
    def window(self) -> int | None:
        """What layers see at most that have pages of their own, None if none have."""

    @property
    def window_pages(self) -> int:
        """How many those are, numbered from 0: enough for the windows and the rows of a step of all slots."""

    @property
    def model(self) -> object:
        """What runs: equal to what it was as long as pages computed before are worth what they would be now."""

    def paying_rows(self, waiting: int) -> int:
        """Of so many sequences that wait for a token each, how many a step is to take: 1 to as many, and to `rows`."""

    def set_table(self, slot: int, pages: Sequence[int], window: Sequence[int | None] | None = None) -> None:
        """The pages of a slot's sequence, in the order of its positions, until set anew; the steps after this see them. window:
        those of layers with a window that have their own, None for what lies before it."""

    def prepare(self, progress: Progress | None = None) -> None:
        """Make what the steps that come most often need, so that nobody waits for it when they first come."""

    def step(self, rows: Sequence[Row]) -> Scores:
        """Run 1 to `rows` rows: those of one slot at positions that follow each other, all inside its table. After an exception
        what the pages hold at the positions of these rows is undefined; other positions are as they were."""

    def step_ahead(self) -> Scores | None:
        """Start the step in which each row of the last one is followed by its `chosen` token at the next position, before
        anybody has read that token. For a step whose rows were all scored, each of another slot, with room for one more. A row
        whose token turns out to end its sequence is to be ignored; one of NOT_A_NUMBER has no scores that mean anything. None
        if the engine keeps the plain order: nothing has run then. Exceptions as `step`."""
