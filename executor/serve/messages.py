"""The messages of a conversation, from OpenAI's form to the one that chat templates are written for."""

from __future__ import annotations

import json
from typing import Any, Final

from executor.base.arguments import described
from executor.base.errors import shown
from executor.serve.errors import ApiError
from executor.serve.fields import CACHE_MARKS, RequestFields

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
MOST_MESSAGES: Final = 4096
_NOT_SUPPORTED: Final = {
    "audio": ((), "the model hears nothing"),
    "refusal": (("",), "no model that is served refuses in words of its own"),
    "function_call": ((), "it is deprecated; tool_calls has taken its place"),
    "annotations": (([],), "no answer has any"),
}


def messages_of(given: Any, template: str) -> list[dict[str, Any]]:
    """Checked: content is text, or None beside calls; arguments of calls are an object, as JSON text; `developer` is `system`
    for templates that do not know it. Habits.fit gives templates the rest. ApiError names the message and what is wrong."""
    if not isinstance(given, list) or not 0 < len(given) <= MOST_MESSAGES:
        what = f"a list of {len(given)}" if isinstance(given, list) else described(given)
        raise ApiError(f"messages is {what}; allowed: a list of 1 to {MOST_MESSAGES} messages", param="messages")
    return [_message(one, f"messages[{at}]", template) for at, one in enumerate(given)]


def _message(given: Any, name: str, template: str) -> dict[str, Any]:
    fields = RequestFields(given, name)
    role = fields.required("role", ", ".join(ROLES))
    if role not in ROLES:
        raise fields.wrong("role", role, ", ".join(ROLES))
    calls = fields.take("tool_calls") if role == "assistant" else None
    content = _content(fields, may_be_empty=bool(calls))
    message = {"role": "system" if role == "developer" and "developer" not in template else role, "content": content}
    if calls:
        message["tool_calls"] = _calls(calls, f"{name}.tool_calls")
    kept = {"tool": ("name", "tool_call_id"), "assistant": ("name", "reasoning_content", "reasoning")}.get(role, ("name",))
    for key in kept:
        if (text := fields.text(key)) is not None:
            message[key] = text
    fields.ignore(*CACHE_MARKS)
    fields.only(_NOT_SUPPORTED)
    fields.finish()
    return message


def _content(fields: RequestFields, may_be_empty: bool) -> str | None:
    """A text, or the texts of parts one after another."""
    content = fields.take("content")
    if content is None and may_be_empty:
        return None
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise fields.wrong("content", content, "text, or a list of parts of type text, at least one")
    return "".join(_part(part, fields.path(f"content[{at}]")) for at, part in enumerate(content))


def _part(given: Any, name: str) -> str:
    part = RequestFields(given, name)
    kind = part.required("type", "text")
    if kind != "text":
        raise ApiError(f"{name} is of type {shown(kind)}; allowed: text", param=name, code="unsupported_parameter")
    text = part.required("text", "text")
    if not isinstance(text, str):
        raise part.wrong("text", text, "text")
    part.ignore(*CACHE_MARKS)
    part.finish()
    return text


def _calls(given: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise ApiError(f"{name} is {described(given)}; allowed: a list of calls", param=name)
    return [_call(one, f"{name}[{at}]") for at, one in enumerate(given)]


def _call(given: Any, name: str) -> dict[str, Any]:
    fields = RequestFields(given, name)
    id = fields.text("id")
    fields.choice("type", "function", ("function",))
    fields.take("index")  # of the parts of a stream, which some programs put together and send back
    function = RequestFields(fields.required("function", "an object with name and arguments"), f"{name}.function")
    fields.finish()
    called = function.required("name", "text")
    arguments = function.text("arguments") or "{}"
    function.finish()
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(called, str) or not isinstance(values, dict):
        raise ApiError(f"{name}.function is no name with a JSON object as arguments", param=f"{name}.function")
    call = {"type": "function", "function": {"name": called, "arguments": arguments}}
    return call if id is None else {"id": id, **call}
