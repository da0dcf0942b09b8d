"""Grammars of answers with calls, where their form is not the model's choice."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from executor.base.errors import GrammarError
from executor.serve.tool_calls import silent_token
from executor.serve.tools import Convention, Tools
from executor.text.grammar import Grammar
from executor.text.json_schema import held, moved
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

_SPACED: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as models are trained to write calls."""


def rules_of(tools: Tools, tokenizer: Tokenizer) -> str | None:
    """A Lark grammar: text and calls, or calls alone if they are required; None where the answer is free. GrammarError for
    schemas of arguments that cannot be followed."""
    convention = tools.convention
    held = tools.required or not tools.parallel or any(tool.strict for tool in tools.callable)
    if convention is None or not held:
        return None
    for tool in tools.callable:
        try:
            Grammar.json_schema(tool.parameters)
        except ArgumentError as error:
            raise GrammarError(f"the parameters of {tool.name}: {error}") from error
    schema = json.dumps(_schema(tools, convention))
    token = silent_token(convention.opening, tokenizer)
    opening = json.dumps(convention.opening) if token is None else f"<[{token}]>"
    closing = json.dumps(convention.closing)
    none_of = f"TEXT: /(?s:.*)/ & ~/(?s:.*){_regex(convention.opening)}(?s:.*)/\n"
    if convention.bare:
        start = "start: call" if tools.required else "start: TEXT | call"
        return f"{start}\nTEXT: /[^{{ \\t\\r\\n](?s:.*)/\ncall: %json {schema}\n"
    if convention.listed:
        rest = f"rest: %json {schema}\n"
    else:
        more = f'("\\n" {opening} body)*' if tools.parallel else ""
        rest = f'rest: body {more}\nbody: "\\n" json "\\n" {closing}\njson: %json {schema}\n'
    if tools.required:
        return f"start: {opening} rest\n{rest}"
    if token is not None:
        return f"start: TEXT ({opening} rest)?\n{none_of}{rest}"
    # A lexeme is as long as it can be, so the text before a call ends with what opens it.
    return f"start: TEXT | before rest\n{none_of}before[lazy]: /(?s:.*){_regex(convention.opening)}/\n{rest}"


def _regex(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_<>]", lambda found: f"\\{found[0]}", text)


def _schema(tools: Tools, convention: Convention) -> dict[str, Any]:
    """Of one call, or of the list of all of them."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, convention.arguments: {"$ref": f"#/$defs/{tool.name}"}},
            "required": ["name", convention.arguments],
            "additionalProperties": False,
        }
        for tool in tools.callable
    ]
    call: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if convention.listed:
        call = {"type": "array", "items": call, "minItems": 1} | ({} if tools.parallel else {"maxItems": 1})
    defined = {tool.name: moved(held(tool.parameters), f"#/$defs/{tool.name}") for tool in tools.callable}
    return call | {"$defs": defined, "x-guidance": _SPACED}
