"""Jinja2's immutable sandbox for chat templates, with the functions that Hugging Face gives them. It traces what the template
wrote itself. It bounds neither time nor memory: that is the work of the process it runs in (child.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import sync_do_join
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import pass_eval_context

from executor.text.rendering.traced import TracedText, joined, own_of, written

ROLES: Final = frozenset({"system", "user", "assistant", "tool", "developer", "function", "ipython", "observation", "model"})
"""Names that programs give to the parts of a conversation. Templates build control tokens of them: <|user|>."""


def render(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], tokens: Mapping[str, str]
) -> str:
    """What the template makes of a conversation: traced text. tokens: texts of control tokens, by variable, such as bos_token.

    TemplateError for what the template does wrong, and any other exception of Python's: it runs arbitrary expressions.
    """
    conversation = [{key: _role(value) if key == "role" else value for key, value in message.items()} for message in messages]
    defined = {"tools": None, "documents": None} | dict(variables) | {"messages": conversation}
    return _Environment().from_string(template).render({name: written(text) for name, text in tokens.items()} | defined)


def _role(value: Any) -> Any:
    return written(value) if isinstance(value, str) and value in ROLES else value


class _Generation(Extension):
    """Hugging Face's {% generation %} ... {% endgeneration %}, around what the assistant says: its body is rendered."""

    tags = {"generation"}  # noqa: RUF012  Jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


# Python's errors name a function that is called wrongly: these have the names that templates know them by.


def raise_exception(message: str) -> str:
    """End the rendering with this reason."""
    raise TemplateError(message)


def strftime_now(format: str) -> str:
    """The local time, in a form of strftime."""
    return datetime.now().strftime(format)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As Hugging Face's: Jinja2's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_eval_context
def join(context: nodes.EvalContext, items: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja2's own, but that its separator is traced where it is not given."""
    return sync_do_join(context, items, d or TracedText(), attribute)


class _Writer(CodeGenerator):
    """Compiles a template so that its own texts are traced."""

    environment: _Environment

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(self.environment.literal(node.value))
        else:
            super().visit_Const(node, frame)

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self.environment.literal("".join(group))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            return super().visit_Concat(node, frame)
        self.write("environment.concat(map(str, (")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write(")))")


class _Formatter(SandboxedFormatter):
    """Of one call of str.format: keeps the pieces of its result."""

    def __init__(self, environment: _Environment) -> None:
        super().__init__(environment)
        self.pieces: list[str] = []
        self.depth = 0  # 1 in the form itself, 2 in a width that has fields

    def parse(self, form: str) -> Iterator[Any]:
        self.depth += 1
        for part in super().parse(form):
            if self.depth == 1:
                self.pieces.append(written(part[0]))
            yield part
        self.depth -= 1

    def format_field(self, value: Any, form: str) -> str:
        text = value if isinstance(value, str) and not form else str(super().format_field(value, form))
        if self.depth == 1:
            self.pieces.append(text)
        return text


class _Environment(ImmutableSandboxedEnvironment):
    """Of one rendering. No constant is computed before it: a template's texts stay what they were written as."""

    code_generator_class = _Writer
    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], optimized=False)
        self.literals: list[TracedText] = []
        self.filters |= {"tojson": tojson, "join": join}
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
        del self.globals["lipsum"]  # no template's business

    def literal(self, text: str) -> str:
        """The expression that gives a text of the template in its compiled form."""
        self.literals.append(written(text))
        return f"environment.literals[{len(self.literals) - 1}]"

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        form = getattr(value, "__self__", None)
        if wrapped is None or not isinstance(form, TracedText) or not all(own_of(form)):
            return wrapped

        def traced(*values: Any, **named: Any) -> str:
            text = wrapped(*values, **named)
            formatter = _Formatter(self)
            formatter.vformat(form, *(((), values[0]) if value.__name__ == "format_map" else (values, named)))
            followed = joined(formatter.pieces)
            return followed if followed == text else text

        return traced
