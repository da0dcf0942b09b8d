"""What a chat template wants of messages, found out by rendering trials: Hugging Face hands templates what it is given, and
they want different things of it. Which calls a model writes is no matter of this file, but of executor/serve/tools.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Final, Literal

from executor.text.call_ids import IdForm, fitted_id
from executor.text.chat import TemplateRefusal, render

_CACHED: Final = 64
"""Templates whose habits are remembered."""

_NAME, _KEY, _VALUE, _SAID = "trial_function", "trial_key", "trial_value", "trial_content"
_LONG_ID, _SHORT_ID = "call_" + 12 * "0a", "c1"
_TOOL: Final = {"name": "other_function", "description": "other", "parameters": {"type": "object", "properties": {}}}
_JSON: Final = re.compile(rf'"{_KEY}"\s*:\s*"{_VALUE}"')
_PYTHON: Final = re.compile(rf"'{_KEY}'\s*:\s*'{_VALUE}'")
_BEST: Final = 16
"""The most that `_worth` gives."""
_CALL: Final = 4
"""What it gives at least to a text with a call in it."""

Absent = Literal["none", "missing", "empty"]
Arguments = Literal["object", "text"]


@dataclass(frozen=True)
class Habits:
    """parts: content is a list of parts, and a text is lost; arguments: those of calls are an object, or JSON as text; absent:
    the content of a message that has calls alone is None, missing, or an empty text; ids: the form of those
    of calls."""

    parts: bool = False
    arguments: Arguments = "object"
    absent: Absent = "none"
    ids: IdForm = "any"

    def fit(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages of OpenAI's form, whose content is text or None and whose arguments are JSON as text, as the template wants
        them. What was thought has each name that templates know it by, as in apply_chat_template."""
        new_ids: dict[str, str] = {}
        calls = 0
        fitted: list[dict[str, Any]] = []
        for message in messages:
            for call in message.get("tool_calls", ()):
                if "id" in call:
                    new_ids[call["id"]] = fitted_id(call["id"], self.ids, call["function"]["name"], calls)
                calls += 1
            fitted.append(self._message(message, new_ids))
        return fitted

    def _message(self, message: Mapping[str, Any], new_ids: Mapping[str, str]) -> dict[str, Any]:
        fitted = dict(message)
        reasoning = next((fitted[name] for name in ("reasoning_content", "thinking", "reasoning") if fitted.get(name)), None)
        if reasoning is not None:
            fitted = {"thinking": reasoning} | fitted | {"reasoning_content": reasoning}
        content = fitted.get("content")
        if content is None:
            fitted |= {"content": None if self.absent == "none" else ""}
            if self.absent == "missing":
                del fitted["content"]
        elif self.parts and isinstance(content, str):
            fitted["content"] = [{"type": "text", "text": content}]
        if "tool_calls" in fitted:
            fitted["tool_calls"] = [self._call(call, new_ids) for call in fitted["tool_calls"]]
        if "tool_call_id" in fitted:
            id = fitted["tool_call_id"]
            fitted["tool_call_id"] = new_ids[id] if id in new_ids else fitted_id(id, self.ids, fitted.get("name", ""), 0)
        return fitted

    def _call(self, call: Mapping[str, Any], new_ids: Mapping[str, str]) -> dict[str, Any]:
        function = dict(call["function"])
        if self.arguments == "object":
            function["arguments"] = json.loads(function["arguments"])
        return {**call, "function": function} | ({"id": new_ids[call["id"]]} if "id" in call else {})


def habits_of(template: str, bos_token: str, eos_token: str, *, calls: bool) -> Habits:
    """What the template wants. calls: of calls, too, which are no part of most conversations. ModelError where a trial takes
    more than it may, or there is no process for it."""
    parts = _wants_parts(template, bos_token, eos_token)
    return _habits(template, bos_token, eos_token, parts) if calls else Habits(parts)


@lru_cache(_CACHED)
def _wants_parts(template: str, bos_token: str, eos_token: str) -> bool:
    for parts in (False, True):
        messages = Habits(parts).fit([{"role": "user", "content": _SAID}])
        if _SAID in (_tried(template, messages, bos_token, eos_token) or ""):
            return parts
    return False


@lru_cache(_CACHED)
def _habits(template: str, bos_token: str, eos_token: str, parts: bool) -> Habits:
    """The first of those that do best; another form of ids where these refuse short ones, or only ids name a function."""
    best, most = Habits(parts), 0
    for habits in _choices(parts):
        worth = _worth(_tried(template, habits.fit(_conversation(_LONG_ID)), bos_token, eos_token))
        if worth > most:
            best, most = habits, worth
        if worth == _BEST:
            break
    if best.ids != "any" or most < _CALL:
        return best
    if _tried(template, best.fit(_conversation(_SHORT_ID)), bos_token, eos_token) is None:
        return replace(best, ids="nine or more")
    named = replace(best, ids="function")
    worth = 0 if most == _BEST else _worth(_tried(template, named.fit(_conversation(_LONG_ID)), bos_token, eos_token))
    return named if worth > most else best


def _choices(parts: bool) -> Iterator[Habits]:
    absences: tuple[Absent, ...] = ("none", "missing", "empty")
    arguments: tuple[Arguments, ...] = ("object", "text")
    ids: tuple[IdForm, ...] = ("any", "nine")
    for absent, form, length in product(absences, arguments, ids):
        yield Habits(parts, form, absent, length)


def _conversation(id: str) -> list[dict[str, Any]]:
    function = {"name": _NAME, "arguments": json.dumps({_KEY: _VALUE})}
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": id, "name": _TOOL["name"], "content": "b"},
    ]


def _tried(template: str, messages: Sequence[Mapping[str, Any]], bos_token: str, eos_token: str) -> str | None:
    """The text of a trial; None where the template refuses it."""
    extra = {"tools": [{"type": "function", "function": _TOOL}]}
    try:
        return render(template, messages, bos_token=bos_token, eos_token=eos_token, extra=extra)
    except TemplateRefusal:
        return None


def _worth(text: str | None) -> int:
    """How well a text shows the call of the trial: its name, its arguments, these as JSON, and nothing as Python writes it. Any
    text is better than none."""
    if text is None:
        return 0
    shown = 8 * (_NAME in text) + 4 * (_KEY in text and _VALUE in text) + 2 * (_JSON.search(text) is not None)
    return 2 + shown - (_PYTHON.search(text) is not None) - ("None" in text)
