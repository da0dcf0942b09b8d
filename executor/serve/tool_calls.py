"""The calls in an answer, read while it comes."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from executor.serve.json_values import NO_VALUE, UNFINISHED, ValueEnd
from executor.serve.tools import Convention, Tools
from executor.text.call_ids import IdForm, new_id
from executor.text.tokenizer import Tokenizer

_BETWEEN: Final = " \t\r\n,;"
"""What may stand between two calls."""


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer makes. arguments: a JSON object, as text."""

    name: str
    arguments: str

    def as_json(self, index: int, form: IdForm, earlier: int) -> dict[str, Any]:
        """As answers have it, with an id that the template takes back. index: in the answer, before which there were so many
        `earlier` calls."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": index, "id": new_id(form, self.name, earlier + index), "type": "function", "function": function}


class CallReader:
    """Takes the calls out of an answer while it comes. A call ends where its JSON ends, and with the mark that closes it where
    the convention has one. What might still become a call is held back; what turns out to be none is text. White space beside a
    call is dropped."""

    def __init__(self, tools: Tools, convention: Convention) -> None:
        self._convention = convention
        self._names = {tool.name for tool in tools.callable}
        self._held = ""
        self._opening: str | None = None  # what opened the call that `_held` is the beginning of
        self._value: ValueEnd | None = None  # of the value that is being read
        self._start = 0  # of that value, or of what follows the last one
        self._found: list[ToolCall] = []  # in values before
        self._space = ""
        self._begun = False
        self.calls = 0
        """How many there were so far."""

    def push(self, text: str) -> Iterator[str | ToolCall]:
        """What a text completes: other text and calls, in their order."""
        self._held += text
        yield from self._read(last=False)

    def finish(self) -> Iterator[str | ToolCall]:
        """What is left at the end."""
        yield from self._read(last=True)
        held, self._held = self._held, ""
        yield from self._say((self._opening or "") + held)
        if self._space and not self.calls:
            yield self._space

    def _read(self, *, last: bool) -> Iterator[str | ToolCall]:
        """Everything that is certain. last: nothing more comes."""
        while self._held or self._found:
            if self._opening is None:
                before, self._opening, self._held = self._cut()
                yield from self._say(before)
                if self._opening is None:
                    return
                self._start = 0
            elif self._value is not None:
                end = self._value.find(self._held)
                if end == UNFINISHED:
                    return
                yield from self._end_of_value(end)
            elif not (yield from self._between(last)):
                return

    def _end_of_value(self, end: int) -> Iterator[str | ToolCall]:
        """A value has ended, or is none."""
        calls = [] if end == NO_VALUE else _parsed(self._held[self._start : end])
        self._value = None
        if not calls or not all(call.name in self._names for call in calls):
            yield from self._no_call(max(end, 0))
            return
        self._found += calls
        self._start = end
        if not self._convention.closing:
            yield from self._say_calls(end)

    def _between(self, last: bool) -> Generator[str | ToolCall, None, bool]:
        """Before, between and after the values of a call. Whether there is more to read."""
        at = self._start
        while at < len(self._held) and self._held[at] in _BETWEEN:
            at += 1
        rest, closing, opening = self._held[at:], self._convention.closing, self._convention.opening
        after = bool(self._found) or (self._opening == "" and self.calls > 0)
        ends = ([closing] if closing else []) + ([opening] if after else [])
        if not last and (not rest or any(mark != rest and mark.startswith(rest) for mark in ends)):
            return False
        ended = next((mark for mark in ends if rest.startswith(mark)), "")
        if after and (ended or not rest):
            yield from self._say_calls(at + (len(closing) if ended == closing else 0))
            self._opening = None
        elif rest[:1] in ("{", "["):
            self._start, self._value = at, ValueEnd(at)
        elif rest:
            yield from self._no_call(0)
        return bool(rest)

    def _say_calls(self, end: int) -> Iterator[ToolCall]:
        """The calls that were found; `_held` goes on after them."""
        calls, self._found = self._found, []
        self._space = ""
        self.calls += len(calls)
        self._opening, self._held, self._start = "", self._held[end:], 0
        yield from calls

    def _no_call(self, end: int) -> Iterator[str]:
        """What opened it is text, with `end` characters of what follows; the rest is read again."""
        text, self._held = (self._opening or "") + self._held[:end], self._held[end:]
        self._opening, self._found, self._begun = None, [], True
        yield from self._say(text)

    def _cut(self) -> tuple[str, str | None, str]:
        """What is certain to be text, what opens a call after it, if anything does, and the rest."""
        held, opening = self._held, self._convention.opening
        if self._convention.bare and not self._begun and not self.calls:
            first = held.lstrip()[:1]
            if first in ("", "{"):
                return "", "" if first else None, held
        before, found, rest = held.partition(opening)
        if found:
            return before, opening, rest
        kept = next((n for n in range(min(len(held), len(opening) - 1), 0, -1) if opening.startswith(held[-n:])), 0)
        return held[: len(held) - kept], None, held[len(held) - kept :]

    def _say(self, text: str) -> Iterator[str]:
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            self._begun = True
            yield said


def silent_token(marker: str, tokenizer: Tokenizer) -> int | None:
    """The control token that a marker is, which no text shows; None for a marker that is written out."""
    ids = tokenizer.encode(marker, add_special=False, parse_special=True, continues=True)
    return ids[0] if len(ids) == 1 and not tokenizer.token_bytes(ids[0]) else None


def _parsed(text: str) -> list[ToolCall]:
    """The calls of a JSON value: an object with a name and arguments, or a list of such; none if anything else is in it."""
    calls: list[ToolCall] = []
    try:
        value = json.loads(text)
        for one in value if isinstance(value, list) else [value]:
            arguments = one.get("arguments", one.get("parameters", {}))
            if not isinstance(one["name"], str) or not isinstance(arguments, dict):
                return []
            calls.append(ToolCall(one["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False)))
    except (ValueError, AttributeError, KeyError, RecursionError):
        return []
    return calls
