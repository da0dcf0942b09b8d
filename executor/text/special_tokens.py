"""Tokens that are cut out of a text before its words are encoded: control tokens and user-defined ones. The spans of a text say
where control tokens count, and where they are ordinary text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_ASCII_SPACES: Final = " \t\n\v\f\r"


@dataclass(frozen=True)
class Span:
    """A part of a text. trusted: control tokens written in it are control tokens; if not, they are ordinary characters."""

    text: str
    trusted: bool


class SpecialTokens:
    """Finds the tokens of some texts, leftmost first, the longest of those that begin at one place.

    A trie, kept as its sorted words, each of which knows the longest other that it begins with. Of all words that a text
    begins with, the longest is the last word not after the text in sorted order, or one of those that this word begins with.
    So a search costs the logarithm of the number of tokens, which a file may make large.
    """

    def __init__(self, control: Mapping[str, int], others: Mapping[str, int]) -> None:
        """control: ids by text, of tokens that are found in trusted spans alone; others: of tokens found anywhere."""
        ids = {**others, **control}
        self._texts: Sequence[str] = sorted(text for text in ids if text)
        self._ids = [ids[text] for text in self._texts]
        self._is_control = [text in control for text in self._texts]
        self._shorter: list[int] = []  # place of the longest word that this one begins with, -1 for none
        self._longest: dict[str, int] = {}  # characters of a word, by its first
        branch: list[int] = []
        for place, text in enumerate(self._texts):
            while branch and not text.startswith(self._texts[branch[-1]]):
                branch.pop()
            self._shorter.append(branch[-1] if branch else -1)
            branch.append(place)
            self._longest[text[0]] = max(len(text), self._longest.get(text[0], 0))
        self._first = re.compile(f"[{re.escape(''.join(self._longest))}]") if self._texts else None

    def cut(self, spans: Iterable[Span]) -> Iterator[tuple[str, int | None]]:
        """The text of the spans as tokens (with ids) and runs of other text (with none), which go on from span to span."""
        spans = list(spans)
        text = "".join(span.text for span in spans)
        trusted = _trusted(spans)
        start, end = next(trusted)
        done = at = 0
        while match := self._first.search(text, at) if self._first else None:
            at = match.start()
            while at >= end:
                start, end = next(trusted)
            place = self._longest_at(text, at, end if at >= start else at)
            if place < 0:
                at += 1
                continue
            if at > done:
                yield text[done:at], None
            yield self._texts[place], self._ids[place]
            done = at = at + len(self._texts[place])
        if done < len(text):
            yield text[done:], None

    def _longest_at(self, text: str, at: int, trusted_until: int) -> int:
        """Place of the longest word that stands here, a control token only if it ends by `trusted_until`; -1 for none."""
        texts = self._texts
        place = bisect_right(texts, text[at : at + self._longest[text[at]]]) - 1
        while place >= 0:
            word = texts[place]
            if text.startswith(word, at) and not (self._is_control[place] and at + len(word) > trusted_until):
                return place
            place = self._shorter[place]
        return -1


def _trusted(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Start and end of each stretch of trusted text, and then one that nothing reaches."""
    start: int | None = None
    at = 0
    for span in spans:
        if span.text and span.trusted and start is None:
            start = at
        elif span.text and not span.trusted and start is not None:
            yield start, at
            start = None
        at += len(span.text)
    if start is not None:
        yield start, at
    yield at + 1, at + 1


def stripped(
    parts: Iterable[tuple[str, int | None]], before: frozenset[int], after: frozenset[int]
) -> Iterator[tuple[str, int | None]]:
    """What `SpecialTokens.cut` gives, less the white space before the tokens `before` and after the tokens `after`."""
    parts = list(parts)
    for place, (text, index) in enumerate(parts):
        if index is None:
            if place and parts[place - 1][1] in after:
                text = text.lstrip(_ASCII_SPACES)
            if place + 1 < len(parts) and parts[place + 1][1] in before:
                text = text.rstrip(_ASCII_SPACES)
        if text:
            yield text, index
