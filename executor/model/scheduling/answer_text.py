"""The text of an answer while its tokens arrive, cut where a stop string begins."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from executor.base.arguments import described
from ptxgen.errors import ArgumentError


class Pieces(Protocol):
    """Text out of tokens that arrive one by one: executor/text/tokenizer.py has it."""

    def push(self, index: int, /) -> str:
        """The text that this token completes, maybe none."""

    def finish(self) -> str:
        """What is left when no more tokens come."""


class StopStrings:
    """Passes text on up to the first stop string, however the text is cut into pieces: text that may be the beginning of one is
    held back until that is known. Of two stop strings the one that ends first counts, of two that end together the longer."""

    def __init__(self, stops: str | Collection[str]) -> None:
        """ArgumentError for what is no text, and for empty text, which stands everywhere."""
        stops = [stops] if isinstance(stops, str) else list(stops) if isinstance(stops, Collection) else [stops]
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise ArgumentError(f"a stop string is {described(stop)}; allowed: text of at least one character")
        self._stops = tuple(dict.fromkeys(stops))
        self._beginnings = {stop[:length] for stop in self._stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._stops)

    def push(self, text: str) -> str:
        """What is certain to belong to the text; nothing once a stop string was found."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        held = self._beginning(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """How many characters at the end of the text are the beginning of a stop string, at most."""
        return next((n for n in range(min(len(text), self._longest), 0, -1) if text[-n:] in self._beginnings), 0)


class AnswerText:
    """The text of the tokens pushed so far. pieces: None where the file has no vocabulary; the text then stays empty."""

    def __init__(self, pieces: Pieces | None, stops: StopStrings) -> None:
        self._pieces = pieces
        self._stops = stops
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All that is certain so far."""
        return "".join(self._parts)

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it."""
        return self._stops.found is not None

    def push(self, token: int) -> str:
        """What a token adds to the text, maybe nothing."""
        return "" if self._pieces is None else self._kept(self._stops.push(self._pieces.push(token)))

    def finish(self) -> str:
        """What the end of the tokens adds: characters that never got whole, and text that was no stop string after all."""
        if self._pieces is None or self.stopped:
            return ""
        return self._kept(self._stops.push(self._pieces.finish()) + self._stops.finish())

    def _kept(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
