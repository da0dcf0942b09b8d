"""Functions that a model may call: what a request says of them, and which of its answers are calls.

How a model writes a call is its template's convention. Three are known, each by what its template has in it; with another
template the tools are shown to the model and its calls stay text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executor.base.arguments import described
from executor.serve.errors import ApiError
from executor.serve.fields import CACHE_MARKS, RequestFields

MOST_TOOLS: Final = 128
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A function. shown: as the template gets it; parameters: the JSON schema of its arguments; strict: arguments must conform
    to it wherever a call is made."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool
    shown: Mapping[str, Any]


@dataclass(frozen=True)
class Convention:
    """How a template has its model write calls. signs: texts of which such a template has one; opening, closing: what stands
    around a call, no closing where calls go on to the end; arguments: the key of the arguments; bare: an answer that begins
    with a brace is a call, too; listed: calls stand in one JSON list."""

    name: str
    signs: tuple[str, ...]
    opening: str
    closing: str = ""
    arguments: str = "arguments"
    bare: bool = False
    listed: bool = False


CONVENTIONS: Final = (
    Convention("hermes", ("<tool_call>",), "<tool_call>", "</tool_call>"),
    Convention("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", listed=True),
    Convention(
        "llama3",
        ("<|python_tag|>", '"parameters": dictionary of argument name'),
        "<|python_tag|>",
        arguments="parameters",
        bare=True,
    ),
)


@dataclass(frozen=True)
class Tools:
    """What a request says of tools. shown: what the template gets, None for nothing; callable: those that a call may name;
    required: the answer must be a call; parallel: it may be several; convention: None where calls stay text."""

    shown: Sequence[Mapping[str, Any]] | None = None
    callable: Sequence[Tool] = ()
    required: bool = False
    parallel: bool = True
    convention: Convention | None = None


def tools_of(fields: RequestFields, template: str) -> Tools:
    """Take what a request says. ApiError for tools that the template would not show, and for a choice that cannot be held."""
    given, chosen = fields.take("tools"), fields.take("tool_choice")
    parallel = fields.flag("parallel_tool_calls", True)
    if given is None or given == []:
        if chosen not in (None, "none", "auto"):
            raise ApiError("tool_choice is given, and there are no tools to choose from", param="tool_choice")
        return Tools()
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise fields.wrong("tools", given, f"a list of up to {MOST_TOOLS} tools")
    tools = [_tool(one, f"tools[{at}]") for at, one in enumerate(given)]
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise ApiError("two tools have one name; each needs its own", param="tools")
    if not re.search(r"\btools\b", template):
        raise ApiError(
            "the model's chat template shows no tools to the model, so it cannot call any; leave tools out",
            param="tools",
            code="unsupported_parameter",
        )
    if chosen == "none":
        return Tools()
    convention = next((one for one in CONVENTIONS if any(sign in template for sign in one.signs)), None)
    named = _named(chosen, names)
    required = named is not None or chosen == "required"
    held = required or any(tool.strict for tool in tools) or not parallel
    if held and convention is None:
        raise ApiError(
            "how this model's template writes calls is not known, so their form cannot be held; allowed: tool_choice auto or "
            "none, without strict functions and parallel_tool_calls: false",
            param="tools",
            code="unsupported_parameter",
        )
    callable = [tool for tool in tools if named in (None, tool.name)]
    return Tools([tool.shown for tool in tools], callable, required, parallel and named is None, convention)


def _tool(given: Any, name: str) -> Tool:
    fields = RequestFields(given, name)
    fields.choice("type", "function", ("function",))
    function = RequestFields(fields.required("function", "an object with name, description and parameters"), f"{name}.function")
    fields.ignore(*CACHE_MARKS)
    fields.finish()
    called = function.required("name", "up to 64 letters, digits, _ and -")
    if not isinstance(called, str) or not _NAME.fullmatch(called):
        raise function.wrong("name", called, "up to 64 letters, digits, _ and -")
    description = function.text("description")
    parameters = function.take("parameters")
    strict = function.flag("strict")
    function.ignore(*CACHE_MARKS)
    function.finish()
    if parameters is not None and not isinstance(parameters, Mapping):
        raise function.wrong("parameters", parameters, "a JSON schema of an object")
    shown: dict[str, Any] = {"name": called} | ({} if description is None else {"description": description})
    shown |= {"parameters": {"type": "object", "properties": {}} if parameters is None else parameters}
    schema = {"type": "object", **(parameters or {"properties": {}, "additionalProperties": False})}
    return Tool(called, schema, strict, {"type": "function", "function": shown})


def _named(chosen: Any, names: Sequence[str]) -> str | None:
    """The function that must be called; None if the choice names none."""
    if chosen in (None, "auto", "required"):
        return None
    name = chosen.get("function", {}) if isinstance(chosen, Mapping) and chosen.get("type") == "function" else None
    name = name.get("name") if isinstance(name, Mapping) else None
    if name not in names:
        what = f"names {described(name)}" if name is not None else f"is {described(chosen)}"
        raise ApiError(
            f'tool_choice {what}; allowed: "none", "auto", "required", or {{"type": "function", "function": {{"name": ...}}}} '
            f"with one of {', '.join(names)}",
            param="tool_choice",
        )
    return str(name)
