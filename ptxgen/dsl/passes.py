"""A name of the author's that a loop carries from pass to pass in Python's eyes, and not in the kernel's: `s = s + x`.

The body of a loop is written once, so a name that is bound to another register there still means the old one in the next pass.
That is an error where both hold: the body's source reads the name before it binds it, and an instruction of the body reads the
register that the name had before the loop. Only names of the frame that runs the loop are seen, and lists of registers."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType
from typing import TypeGuard

from ptxgen.dsl.author import author_frame, location
from ptxgen.dsl.ir import Line, Op
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError
from ptxgen.isa.operands import Register

Names = dict[tuple[str, int | None], Register]
"""Registers by the name that holds them, and the place in it if it is a list."""


class LoopBody:
    """What the names hold as the body begins, to be compared as it ends."""

    def __init__(self, lines: list[Line]) -> None:
        frame = author_frame()
        self._lines = lines
        self._start = len(lines)
        self._before = _names(frame)
        self._line = frame.f_lineno

    def check(self) -> None:
        """Raise AuthorError for a name that the body reads, and has bound to another register."""
        frame = author_frame()
        now = _names(frame)
        bound = [key for key, register in self._before.items() if now.get(key, register) != register]
        if not bound:
            return
        read = {register for line in self._lines[self._start :] if isinstance(line, Op) for register in line.read}
        for name, place in bound:
            line = _carried(frame, self._line, name) if self._before[name, place] in read else None
            if line is not None:
                raise AuthorError(
                    f"`{name if place is None else f'{name}[{place}]'}` is the new register {now[name, place]} here, and the "
                    f"next pass of the loop reads {self._before[name, place]} again",
                    location(frame, line),
                    "write `x @= ...` to change a register; give what belongs to one pass a name of its own",
                )


def _names(frame: FrameType) -> Names:
    found: Names = {}
    for name, value in frame.f_locals.items():
        if isinstance(value, Value):
            found[name, None] = value.register
        elif isinstance(value, list):
            found |= {(name, place): one.register for place, one in enumerate(value) if isinstance(one, Value)}
    return found


# The source of the body


def _carried(frame: FrameType, head: int, name: str) -> int | None:
    """The line that binds the name last in the loop whose head is at that line, if the body may read it before."""
    loop = _loops(frame.f_code.co_filename).get(head)
    if loop is None or any(_stores(target, name) for target in _targets(loop)) or _first_use(loop.body, name) != "read":
        return None
    return max((line for statement in loop.body for line in _stores(statement, name)), default=None)


@lru_cache(maxsize=64)
def _loops(path: str) -> dict[int, ast.For | ast.With]:
    """The statements of a file that may be loops, by each line of their heads; the innermost if several share one."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:  # no file of Python
        return {}
    found: dict[int, ast.For | ast.With] = {}
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.For | ast.With):
            found |= dict.fromkeys(range(node.lineno, node.body[0].lineno), node)
            found[node.lineno] = node
    return found


def _targets(loop: ast.For | ast.With) -> list[ast.expr]:
    if isinstance(loop, ast.For):
        return [loop.target]
    return [item.optional_vars for item in loop.items if item.optional_vars is not None]


def _first_use(body: Sequence[ast.stmt], name: str) -> str:
    """What the statements do first with a name: "read" if a way through them reads it first, "bound" if all bind it, or ""."""
    for statement in body:
        use = _use(statement, name)
        if use:
            return use
    return ""


def _use(statement: ast.stmt, name: str) -> str:
    match statement:
        case ast.For(target=target, iter=start, body=body):
            inside = "" if _stores(target, name) else _first_use(body, name)
            return "read" if _reads(start, name) or inside == "read" else ""
        case ast.With(items=items, body=body):
            if any(_reads(item, name) for item in items):
                return "read"
            return "bound" if any(_stores(item, name) for item in items) else _first_use(body, name)
        case ast.If(test=test, body=body, orelse=orelse):
            uses = {_first_use(body, name), _first_use(orelse, name)}
            return "read" if _reads(test, name) or "read" in uses else "bound" if uses == {"bound"} else ""
    return "read" if _reads(statement, name) else "bound" if _stores(statement, name) else ""


def _reads(node: ast.AST, name: str) -> bool:
    """Whether the name is read there; `x[i] = ...` does not read x[i]."""
    kept = [one.value for one in ast.walk(node) if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store)]
    return any(_named(one, name) and isinstance(one.ctx, ast.Load) and one not in kept for one in ast.walk(node))


def _stores(node: ast.AST, name: str) -> list[int]:
    """The lines that bind the name or an entry of it."""
    stored = [one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Subscript) and isinstance(one.ctx, ast.Store)]
    return [one.lineno for one in stored if _named(one.value if isinstance(one, ast.Subscript) else one, name)]


def _named(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name
