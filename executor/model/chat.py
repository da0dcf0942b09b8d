"""A conversation to the text a model was trained on, by the Jinja2 template of its file. Tokenises nothing.

The template is part of a downloaded file, so it is an adversary: it runs in Jinja2's immutable sandbox, and what it may
loop over, call, build and print is counted.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from executor.errors import ModelError

if TYPE_CHECKING:
    Message = Mapping[str, Any]

MAX_STEPS: Final = 200_000  # turns of loops plus calls, in one rendering
MAX_TEXT: Final = 4_000_000  # characters of any one string, and of the result: four times a context of 2^18 tokens
MAX_NUMBER: Final = 1_000_000  # of any number given to a call or a filter: widths, counts, repetitions
MAX_TEMPLATE: Final = 1_000_000  # characters
MAX_SECONDS: Final = 10.0

# What can make a text as long as the product of its operands.
_AMPLIFIERS: Final = frozenset({"replace", "join", "translate", "expandtabs", "indent"})
_FORMATTERS: Final = frozenset({"format", "format_map"})
_WIDE: Final = re.compile(r"\d{6}")  # a width or precision in a format string


def render(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    extra: Mapping[str, Any] | None = None,
) -> str:
    """The prompt of a conversation, as Hugging Face's apply_chat_template renders it.

    messages: mappings with at least "role" and "content". extra: further variables of the template, such as
    enable_thinking. The text may already start with bos_token. ModelError for whatever the template does wrong, including
    its own raise_exception.
    """
    if len(template) > MAX_TEMPLATE:
        raise ModelError(f"the chat template has {len(template)} characters; allowed: up to {MAX_TEMPLATE}")
    environment = _Environment()
    variables = dict(extra or {}) | {
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    variables = {"tools": None, "documents": None} | variables
    out: list[str] = []
    try:
        for piece in environment.from_string(template).generate(variables):
            out.append(piece)
            environment.text_grows(len(piece))
    except (TemplateError, SecurityError) as error:
        line = getattr(error, "lineno", None)
        raise ModelError(f"the chat template failed: {error}" + (f" (line {line})" if line else "")) from error
    except Exception as error:  # a template runs arbitrary expressions: any Python error is the template's
        raise ModelError(f"the chat template failed: {type(error).__name__}: {error}") from error
    return "".join(out)


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As Hugging Face's: Jinja2's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox of one rendering that counts. Loops and `~` reach the counters by a rewrite of the parsed template."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.deadline = time.monotonic() + MAX_SECONDS
        self.steps = 0
        self.printed = 0
        self.filters["tojson"] = _tojson
        self.filters = {name: self.bounded(name, function) for name, function in self.filters.items()}
        self.filters |= {"_counted": self.counted, "_measured": self.measured}
        del self.globals["lipsum"]  # slow, and no template's business
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            if loop.recursive:
                raise TemplateError("recursive loops are not supported")
            loop.iter = _filtered(loop.iter, "_counted")
        for parent in list(tree.find_all(nodes.Node)):
            for field, value in parent.iter_fields():
                if isinstance(value, nodes.Concat):
                    setattr(parent, field, _filtered(value, "_measured"))
                elif isinstance(value, list):
                    value[:] = [_filtered(item, "_measured") if isinstance(item, nodes.Concat) else item for item in value]
        return tree

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"more than {MAX_STEPS} loop turns and calls")
        if time.monotonic() > self.deadline:
            raise SecurityError(f"more than {MAX_SECONDS:.0f} s")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def text_grows(self, characters: int) -> None:
        self.printed += characters
        if self.printed > MAX_TEXT:
            raise SecurityError(f"more than {MAX_TEXT} characters of output")

    def measured(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)) and len(value) > MAX_TEXT:
            raise SecurityError(f"a value of more than {MAX_TEXT} elements")
        return value

    def check_call(self, name: str, operands: Sequence[Any]) -> None:
        """operands: the text or list that a method or filter works on, if any, then its arguments."""
        self.step()
        for operand in operands:
            if isinstance(operand, (int, float)) and abs(operand) > MAX_NUMBER:
                raise SecurityError(f"a number over {MAX_NUMBER} given to {name}")
        if name in _AMPLIFIERS and operands and _size(operands[0]) * sum(map(_size, operands[1:])) > 64 * MAX_TEXT:
            raise SecurityError(f"texts too long for {name}")
        if name in _FORMATTERS:
            self.check_format(operands[0])

    def check_format(self, form: Any) -> None:
        if isinstance(form, str) and _WIDE.search(form):
            raise SecurityError("a format with a width of six digits or more")

    def bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose arguments and result are measured; what Jinja2 marked on it stays."""

        @wraps(function)
        def measured(*arguments: Any, **named: Any) -> Any:
            operands = [item for item in arguments if not isinstance(item, (Context, nodes.EvalContext, _Environment))]
            self.check_call(name, [*operands, *named.values()])
            return self.measured(function(*arguments, **named))

        return measured

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # the sandbox wraps str.format
        operands = [owner] if isinstance(owner, (str, list, tuple)) else []
        self.check_call(str(getattr(function, "__name__", "a call")), [*operands, *arguments, *named.values()])
        return self.measured(super().call(context, function, *arguments, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("powers are not supported")
        if operator == "*":
            limit = MAX_NUMBER**2 if _is_number(left) and _is_number(right) else MAX_TEXT
            if _size(left) * _size(right) > limit:
                raise SecurityError("a product that is too large")
        if operator == "%" and isinstance(left, str):
            self.check_call("format", [left, *(right if isinstance(right, tuple) else (right,))])
        return self.measured(super().call_binop(context, operator, left, right))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _size(value: Any) -> float:
    """How much a value can lengthen a text: characters or elements, or the number itself."""
    if isinstance(value, (int, float)):
        return abs(value)
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 1


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)
