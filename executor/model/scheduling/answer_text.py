"""The text of an answer while its tokens arrive, cut where a stop string begins."""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress
from typing import Protocol

from executor.base.arguments import described
from ptxgen.errors import ArgumentError


class Pieces(Protocol):
    """Text out of tokens that arrive one by one: executor/text/tokenizer.py has it."""

    @property
    def start(self) -> int:
        """Where the last token begins in the text, in characters."""

    def push(self, index: int, /) -> str:
        """The text that this token completes, maybe none."""

    def hidden(self, index: int, /) -> str:
        """How a control token is spelt, which is no part of the text; empty for all others."""

    def finish(self) -> str:
        """What is left when no more tokens come."""


class StopStrings:
    """Passes text on up to the first stop string, however the text is cut into pieces: text that may be the beginning of one is
    held back until that is known. Of two stop strings the one that ends first counts, of two that end together the longer. They
    are also found in text that is not shown, the spelling of control tokens, which is not passed on."""

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
        self._shown: list[bool] = []  # of each character that is held
        self.found: str | None = None
        """The stop string that ended the text."""

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._stops)

    def push(self, text: str, *, shown: bool = True) -> str:
        """What is certain to belong to the text; nothing once a stop string was found."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text if shown else ""
        self._held += text
        self._shown += [shown] * len(text)
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            _, at, self.found = min(ends)
            return self._passed(at)
        return self._passed(len(self._held) - self._beginning(self._held))

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        return "" if self.found is not None else self._passed(len(self._held))

    def _passed(self, count: int) -> str:
        """Let the first characters that are held go: those of them that are shown."""
        text = "".join(compress(self._held[:count], self._shown))
        self._held, self._shown = self._held[count:], self._shown[count:]
        return text

    def _beginning(self, text: str) -> int:
        """How many characters at the end of the text are the beginning of a stop string, at most."""
        return next((n for n in range(min(len(text), self._longest), 0, -1) if text[-n:] in self._beginnings), 0)


class AnswerText:
    """The text of the tokens pushed so far. pieces: None where the file has no vocabulary; the text then stays empty; spelt:
    control tokens that are part of the text, as they are spelt."""

    def __init__(self, pieces: Pieces | None, stops: StopStrings, spelt: Collection[int] = ()) -> None:
        self._pieces = pieces
        self._stops = stops
        self._spelt = frozenset(spelt)
        self._parts: list[str] = []
        self._added = 0  # characters of control tokens that are spelt
        self.start = 0
        """Where the last token begins in the text of all of them, in characters: after the end of this one, if it is part of a
        stop string or is held back."""

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
        if self._pieces is None:
            return ""
        hidden = self._pieces.hidden(token) if self._stops.any or self._spelt else ""
        text = self._pieces.push(token)
        self.start = self._pieces.start + self._added
        is_spelt = token in self._spelt
        self._added += len(hidden) * is_spelt
        return self._kept(self._stops.push(hidden, shown=is_spelt) + self._stops.push(text))

    def finish(self, end: int | None = None) -> str:
        """What the end of the tokens adds: characters that never got whole, and text that was no stop string after all. end:
        the token that ended them, which is no part of the text, and may complete a stop string."""
        if self._pieces is None or self.stopped:
            return ""
        text = self._stops.push(self._pieces.finish())
        if end is not None:
            text += self._stops.push(self._pieces.hidden(end) or self._pieces.push(end), shown=False)
        return self._kept(text + self._stops.finish())

    def _kept(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
