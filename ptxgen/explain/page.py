"""An explanation as one HTML page that needs no network: facts on top, then Python, PTX and SASS side by side, linked line by
line. How it looks is in templates/explain.html.j2; this file prepares what the template shows."""

from __future__ import annotations

import io
import keyword
import linecache
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ptxgen.errors import Location
from ptxgen.explain.explanation import Explanation
from ptxgen.explain.report import accuracy_rows, argument_rows, bound_rows, caveat, mixes, summary

AROUND: Final = 2  # Python lines shown before and after one that wrote something
HUES: Final = 12
_OPCODE: Final = re.compile(r"^(\s*(?:@!?\S+ )?)([A-Za-z][\w.:]*)(.*)$", re.DOTALL)


@dataclass(frozen=True)
class PaneLine:
    """A line of a pane. `links` are the PTX lines that it belongs with; `hue` colours it, -1 for none; `inner`: it is in an
    inner loop."""

    number: str
    text: Markup
    links: tuple[int, ...] = ()
    hue: int = -1
    inner: bool = False
    title: str = ""


@dataclass(frozen=True)
class Pane:
    """A column of the page."""

    name: str
    rows: tuple[PaneLine, ...]


def render(explanation: Explanation) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("ptxgen.explain"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    e = explanation
    hues = {where: index % HUES for index, where in enumerate(e.by_author)}
    panes = (Pane("Python", tuple(_python(e, hues))), Pane("PTX", tuple(_ptx(e, hues))), Pane("SASS", tuple(_sass(e, hues))))
    missing = {"Python": "no line of Python wrote this text", "SASS": e.no_sass}
    return environment.get_template("explain.html.j2").render(
        title=str(e.kernel),
        doc=[paragraph.replace("\n", " ") for paragraph in e.doc.split("\n\n")],
        arguments=argument_rows(e),
        summary=summary(e),
        loops=[
            (title, [(unit.value, count, count / mix.total) for unit, count in mix.instructions.items()])
            for title, mix in mixes(e)
        ],
        bounds=[(*row, bound.share) for row, bound in zip(bound_rows(e), e.bounds, strict=True)],
        caveat=caveat(e),
        accuracy=accuracy_rows(e),
        panes=[pane for pane in panes if pane.rows],
        missing=[f"{pane.name}: {missing[pane.name]}" for pane in panes if not pane.rows],
        hues=HUES,
    )


def _python(e: Explanation, hues: dict[Location, int]) -> Iterator[PaneLine]:
    """Every file that wrote something, cut down to the lines that did and what is around them."""
    files: dict[str, dict[int, Location]] = {}
    for where in e.by_author:
        files.setdefault(where.file, {})[where.line] = where
    inner = _inner_lines(e)
    for file, wrote in files.items():
        yield PaneLine("", Markup('<span class="file">{}</span>').format(file))
        source = _source(file)
        painted = _painted_python(source)
        shown = sorted({near for line in wrote for near in range(line - AROUND, line + AROUND + 1) if 1 <= near <= len(source)})
        before = 0
        for line in shown or sorted(wrote):
            if before and line > before + 1:
                yield PaneLine("", Markup('<span class="gap">&#8943;</span>'))
            before = line
            author = wrote.get(line)
            text = painted[line - 1] if line <= len(painted) else escape(author.source if author else "")
            if author is None:
                yield PaneLine(str(line), text)
            else:
                numbers = tuple(e.by_author[author])
                yield PaneLine(str(line), text, numbers, hues[author], not inner.isdisjoint(numbers))


def _ptx(e: Explanation, hues: dict[Location, int]) -> Iterator[PaneLine]:
    inner = _inner_lines(e)
    for number, text in enumerate(e.emitted.text.splitlines(), 1):
        op = e.lines.get(number)
        if op is None:
            yield PaneLine(str(number), _painted(text), inner=number in inner)
        else:
            title = f"{op.where.file}:{op.where.line}: {op.row.summary}"
            yield PaneLine(str(number), _painted(text), (number,), hues[op.where], number in inner, title)


def _sass(e: Explanation, hues: dict[Location, int]) -> Iterator[PaneLine]:
    inner = _inner_lines(e)
    for line in e.sass:
        if line.address < 0:
            yield PaneLine("", Markup('<span class="label">{}</span>').format(line.text))
            continue
        op = e.lines.get(line.ptx_line)
        links = (line.ptx_line,) if op is not None else ()
        hue = hues[op.where] if op is not None else -1
        yield PaneLine(f"{line.address:04x}", _painted(f"    {line.text}"), links, hue, line.ptx_line in inner)


def _inner_lines(e: Explanation) -> frozenset[int]:
    return frozenset(number for loop in e.inner_loops for number in range(loop.first, loop.last + 1))


def _source(file: str) -> list[str]:
    """The lines of a module that a Location names, empty where it cannot be read (typed at a prompt, say)."""
    module = sys.modules.get(file.removesuffix(".py").replace("/", "."))
    path = getattr(module, "__file__", None)
    return [line.rstrip("\n") for line in linecache.getlines(path)] if path else []


def _painted(text: str) -> Markup:
    """A line of PTX or SASS with its opcode, or its being a comment or a label, marked."""
    stripped = text.lstrip()
    if stripped.startswith("//"):
        return Markup('<span class="comment">{}</span>').format(text)
    if stripped.startswith((".", "$", "{", "}", ")")):
        return Markup('<span class="label">{}</span>').format(text)
    instruction = _OPCODE.match(text)
    if not instruction:
        return escape(text)
    return Markup('<span class="guard">{}</span><span class="op">{}</span>{}').format(*instruction.groups())


def _painted_python(source: list[str]) -> list[Markup]:
    """The lines of a file with keywords, strings and comments marked."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for token in tokenize.generate_tokens(io.StringIO("\n".join(source) + "\n").readline):
        kind = _python_class(token)
        (row, start), (last, end) = token.start, token.end
        for line in range(row, last + 1) if kind else ():
            first = start if line == row else 0
            spans.setdefault(line, []).append((first, end if line == last else len(source[line - 1]), kind))
    painted = []
    for number, text in enumerate(source, 1):
        done, at = Markup(""), 0
        for start, end, kind in spans.get(number, []):
            done += escape(text[at:start]) + Markup('<span class="{}">{}</span>').format(kind, text[start:end])
            at = end
        painted.append(done + escape(text[at:]))
    return painted


def _python_class(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.COMMENT:
        return "comment"
    if token.type == tokenize.STRING:
        return "string"
    return "keyword" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else ""
