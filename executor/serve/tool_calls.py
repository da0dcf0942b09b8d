"""The calls in an answer, read while it comes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from executor.serve.tools import Convention, Tools
from executor.text.template_habits import Habits
from executor.text.tokenizer import Tokenizer

_BETWEEN: Final = " \t\r\n,;"
"""What may stand between two calls."""


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer makes. arguments: a JSON object, as text."""

    name: str
    arguments: str

    def as_json(self, index: int, habits: Habits) -> dict[str, Any]:
        """As answers have it, with an id that the template takes back."""
        function = {"name": self.name, "arguments": self.arguments}
        id = habits.id_of(f"call_{secrets.token_hex(12)}")
        return {"index": index, "id": id, "type": "function", "function": function}


class CallReader:
    """Takes the calls out of an answer while it comes. What might still become a call is held back; what turns out to be none
    is text. White space beside a call is dropped."""

    def __init__(self, tools: Tools, convention: Convention) -> None:
        self._convention = convention
        self._names = {tool.name for tool in tools.callable}
        self._held = ""
        self._opening: str | None = None  # of the call that `_held` is the beginning of
        self._space = ""
        self._begun = False
        self.calls = 0
        """How many there were so far."""

    def push(self, text: str) -> Iterator[str | ToolCall]:
        """What a text completes: other text and calls, in their order."""
        self._held += text
        while self._held:
            if self._opening is None:
                before, self._opening, self._held = self._cut()
                yield from self._say(before)
                if self._opening is None:
                    return
            end = self._held.find(self._convention.closing) if self._convention.closing else -1
            if end < 0:
                return
            body, self._held = self._held[:end], self._held[end + len(self._convention.closing) :]
            yield from self._read(body, self._convention.closing)

    def finish(self) -> Iterator[str | ToolCall]:
        """What is left at the end."""
        held, self._held = self._held, ""
        yield from self._say(held) if self._opening is None else self._read(held, "")
        if self._space and not self.calls:
            yield self._space

    def _cut(self) -> tuple[str, str | None, str]:
        """What is certain to be text, what opens a call behind it, if anything does, and the rest."""
        held, opening = self._held, self._convention.opening
        if self._convention.bare and not self._begun and not self.calls:
            first = held.lstrip()[:1]
            if first in ("", "{"):
                return "", first and "", held
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

    def _read(self, body: str, closing: str) -> Iterator[str | ToolCall]:
        opening, self._opening = self._opening or "", None
        calls = _parsed(body)
        if not calls or not all(call.name in self._names for call in calls):
            yield from self._say(opening + body + closing)
            return
        self._space = ""
        self.calls += len(calls)
        yield from calls


def silent_token(marker: str, tokenizer: Tokenizer) -> int | None:
    """The control token that a marker is, which no text shows; None for a marker that is written out."""
    ids = tokenizer.encode(marker, add_special=False, parse_special=True, continues=True)
    return ids[0] if len(ids) == 1 and not tokenizer.token_bytes(ids[0]) else None


def _parsed(body: str) -> list[ToolCall]:
    """The calls of a body: JSON objects with a name and arguments, or lists of such; none if anything else is in it."""
    decoder, calls, at = json.JSONDecoder(), list[ToolCall](), 0
    try:
        while at < len(body):
            if body[at] in _BETWEEN:
                at += 1
                continue
            value, at = decoder.raw_decode(body, at)
            for one in value if isinstance(value, list) else [value]:
                arguments = one.get("arguments", one.get("parameters", {}))
                if not isinstance(one["name"], str) or not isinstance(arguments, dict):
                    return []
                calls.append(ToolCall(one["name"], json.dumps(arguments, ensure_ascii=False)))
    except (ValueError, AttributeError, KeyError, RecursionError):
        return []
    return calls
