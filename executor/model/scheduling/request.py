"""What a caller of a scheduler holds for each sequence: its state, its answer so far, and ways to wait for more of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Protocol

from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.token_sequence import AnswerPiece, State, Stopped, TokenSequence, Usage, Waiting


@dataclass(frozen=True)
class Completion:
    """A finished answer. tokens: without the one that ended the text, with those of a stop string; text: up to the stop string,
    empty where the file has no vocabulary; logprobs: of its tokens, if they were asked for."""

    tokens: tuple[int, ...]
    text: str
    stopped: Stopped
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()


class Driver(Protocol):
    """What a request needs of its scheduler."""

    def step(self) -> bool:
        """Run one step."""

    async def turn(self) -> None:
        """Wait until one more step has run."""

    def cancel(self, sequence: TokenSequence) -> bool:
        """End a sequence now."""


class Request:
    """One sequence of a scheduler, as its caller sees it.

    Iterating gives its pieces from the first on and runs steps of the scheduler, for all its sequences, while the next one is
    not there; `async for` does so without holding the event loop for more than a step. Any number of iterators may run. They
    raise what made the sequence fail. All is for the thread of the scheduler.
    """

    def __init__(self, driver: Driver, sequence: TokenSequence) -> None:
        self._driver = driver
        self._sequence = sequence

    @property
    def number(self) -> int:
        """Of the request, in the order of arrival."""
        return self._sequence.number

    @property
    def state(self) -> State:
        """queued, running or finished; a running sequence may be queued again."""
        return self._sequence.state

    @property
    def waiting(self) -> Waiting:
        """What a queued one waits for: its turn, a slot or pages."""
        return self._sequence.waiting

    @property
    def stopped(self) -> Stopped | None:
        """Why it has finished."""
        return self._sequence.stopped

    @property
    def error(self) -> Exception | None:
        """Why it has failed."""
        return self._sequence.error

    @property
    def seed(self) -> int:
        """Of its sampler: with it the same answer is drawn again."""
        return self._sequence.seed

    @property
    def tokens(self) -> list[int]:
        """The answer so far."""
        return self._sequence.answer

    @property
    def text(self) -> str:
        """The text of the answer, as far as it is certain."""
        return self._sequence.text.text

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """How likely the tokens so far were, if that was asked for."""
        return list(self._sequence.logprobs)

    @property
    def prompt_logprobs(self) -> list[TokenLogprob]:
        """How likely the tokens of the prompt after the first were, as far as they are known, if that was asked for."""
        return list(self._sequence.prompt_logprobs)

    @property
    def usage(self) -> Usage:
        """What it took so far."""
        return self._sequence.usage()

    def after(self, seen: int) -> list[AnswerPiece]:
        """The pieces so far but for the first `seen`, for who runs the steps himself."""
        return self._sequence.pieces[seen:]

    def logprobs_after(self, seen: int) -> list[TokenLogprob]:
        """Of `logprobs`, all but the first `seen`."""
        return self._sequence.logprobs[seen:]

    def cancel(self) -> bool:
        """End it now; what it has so far stays. Whether it had not finished yet."""
        return self._driver.cancel(self._sequence)

    def result(self) -> Completion:
        """Run steps until it has finished. Raises what made it fail."""
        for _ in self:
            pass
        return self._completion()

    async def wait(self) -> Completion:
        """As `result`, while the event loop goes on."""
        async for _ in self:
            pass
        return self._completion()

    def __iter__(self) -> Iterator[AnswerPiece]:
        at = 0
        while True:
            for piece in self._sequence.pieces[at:]:
                at += 1
                yield piece
            if self._is_over(at):
                return
            if at == len(self._sequence.pieces):
                self._driver.step()

    async def __aiter__(self) -> AsyncIterator[AnswerPiece]:
        at = 0
        while True:
            for piece in self._sequence.pieces[at:]:
                at += 1
                yield piece
            if self._is_over(at):
                return
            if at == len(self._sequence.pieces):
                await self._driver.turn()

    def _is_over(self, seen: int) -> bool:
        if self.state != "finished" or seen < len(self._sequence.pieces):
            return False
        if self.error is not None:
            raise self.error
        return True

    def _completion(self) -> Completion:
        assert self.stopped is not None
        return Completion(tuple(self.tokens), self.text, self.stopped, self.usage, tuple(self.logprobs))
