"""Text that knows which of its characters a template wrote, through whatever the template does with it. Renders nothing.

What is not followed here, a width in a format or an unknown filter, gives plain text: then nothing of it counts as the
template's. So a slip can make a control token of the template's into ordinary text, and never text into a control token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, SupportsIndex

_CONVERSION: Final = re.compile(r"%(?:\((?P<name>[^()]*)\))?(?P<spec>[^%a-zA-Z(]*)[hlL]?(?P<kind>[a-zA-Z%])")
_RUN: Final = re.compile(rb"\x00+|\x01+")


def _in_case(change: Callable[[str], str]) -> Callable[[TracedText], str]:
    def changed(self: TracedText) -> str:
        text = change(self)  # no character becomes none, so equal lengths are one to one
        return TracedText(text, self._own) if len(text) == len(self) else text

    return changed


class TracedText(str):
    """A str in every respect, with a byte for each character: 1 where the template wrote it."""

    _own: bytes  # the sandbox gives templates no attribute that begins so

    upper = _in_case(str.upper)
    lower = _in_case(str.lower)
    capitalize = _in_case(str.capitalize)
    title = _in_case(str.title)

    def __new__(cls, text: str = "", own: bytes | None = None) -> TracedText:
        traced = super().__new__(cls, text)
        traced._own = own_of(text) if own is None else own
        if len(traced._own) != len(traced):
            raise ValueError(f"a text of {len(traced)} characters cannot have {len(traced._own)} origins")
        return traced

    def __str__(self) -> TracedText:
        return self

    def __add__(self, other: str) -> TracedText:
        if not isinstance(other, str) or hasattr(other, "__html__"):  # MarkupSafe's escapes what it is added to
            return NotImplemented
        return TracedText(str.__add__(self, other), self._own + own_of(other))

    def __radd__(self, other: str) -> TracedText:
        if not isinstance(other, str):
            return NotImplemented
        return TracedText(str.__add__(other, self), own_of(other) + self._own)

    def __mul__(self, count: SupportsIndex) -> TracedText:
        return TracedText(str.__mul__(self, count), self._own * count)

    __rmul__ = __mul__

    def __getitem__(self, index: SupportsIndex | slice) -> TracedText:
        text = str.__getitem__(self, index)
        if isinstance(index, slice):
            return TracedText(text, self._own[index])
        return TracedText(text, bytes((self._own[index],)))

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __mod__(self, values: Any) -> str:
        """As str's. A form that the template wrote gives its own text and, for a bare %s, that of the value."""
        text = str.__mod__(self, values)
        traced = self._filled(values) if all(self._own) else None
        return text if traced is None or traced != text else traced

    def _filled(self, values: Any) -> TracedText | None:
        rest = list(values) if isinstance(values, tuple) else [values]
        pieces: list[str] = []
        at = 0
        for match in _CONVERSION.finditer(self):
            pieces.append(self[at : match.start()])
            at = match.end()
            if match["kind"] == "%":
                pieces.append(TracedText("%", b"\1"))
                continue
            if "*" in match["spec"] or (match["name"] is None and not rest):
                return None
            value = rest.pop(0) if match["name"] is None else values[match["name"]]
            bare = match["kind"] == "s" and not match["spec"]
            pieces.append(str(value) if bare else str.__mod__(f"%{match['spec']}{match['kind']}", (value,)))
        return joined([*pieces, self[at:]])

    def join(self, items: Iterable[str]) -> TracedText:
        items = list(items)
        return TracedText(str.join(self, items), self._own.join(map(own_of, items)))

    def strip(self, chars: str | None = None) -> TracedText:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> TracedText:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> TracedText:
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str) -> TracedText:
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str) -> TracedText:
        return self[: len(str.removesuffix(self, suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._parts(str.splitlines(self, keepends), "" if keepends else None)

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._parts(str.partition(self, sep), "")
        return head, middle, tail

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._parts(str.rpartition(self, sep), "")
        return head, middle, tail

    def _parts(self, parts: Sequence[str], gap: str | None) -> list[str]:
        """The parts, which stand in this order, with `gap` between; None: with white space that no part begins with."""
        out: list[str] = []
        at = 0
        for part in parts:
            at = at if gap is not None else self.find(part, at)
            out.append(self[at : at + len(part)])
            at += len(part) + len(gap or "")
        return out

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        text = str.replace(self, old, new, count)
        return TracedText(text, own_of(new).join(map(own_of, self.split(old, count)))) if old else text


# Templates know it as str, and so do the errors that they get.
TracedText.__name__ = TracedText.__qualname__ = str.__name__
TracedText.__module__ = str.__module__
for _name, _method in vars(TracedText).items():
    if callable(_method) and hasattr(_method, "__code__"):
        _method.__name__, _method.__qualname__ = _name, f"{str.__name__}.{_name}"


def own_of(text: str) -> bytes:
    """A byte a character: 1 where a template wrote it."""
    return text._own if isinstance(text, TracedText) else bytes(len(text))


def written(text: str) -> TracedText:
    """Text of which the template wrote all."""
    return TracedText(text, b"\1" * len(text))


def joined(pieces: Iterable[str]) -> TracedText:
    """The pieces one after the other. TypeError for one that is no text."""
    return TracedText().join(pieces)


def runs(text: str) -> list[tuple[str, bool]]:
    """The text in stretches that the template wrote, or did not, all of them."""
    own = own_of(text)
    return [(str.__getitem__(text, slice(*run.span())), own[run.start()] == 1) for run in _RUN.finditer(own)]
