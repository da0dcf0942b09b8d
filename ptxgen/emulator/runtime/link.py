"""The runtime as object code: each part is compiled once in a process, and linked to every kernel that needs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ptxgen.emulator import codegen
from ptxgen.emulator.runtime.builder import RuntimeFunction, define
from ptxgen.emulator.runtime.function import KERNEL, parts


@dataclass(frozen=True)
class _Part:
    code: bytes
    calls: frozenset[str]
    """The parts that it calls."""


@cache
def _compiled(part: str, quickly: bool) -> _Part:
    built = [define(function) for function in parts[part].values()]
    called = {name: f for b in built for name, f in b.called.items()}
    outside = [f for f in called.values() if f.part != part]
    declared = {f"declare {f.result} @{f.name}({', '.join(f.arguments.values())})" for f in outside}
    declared.update(*(b.intrinsics for b in built))
    text = "\n".join([*sorted(declared), *(b.text() for b in built)])
    return _Part(codegen.build(text, quickly=quickly), frozenset(f.part for f in outside) - {KERNEL})


def objects(called: Iterable[RuntimeFunction], *, quickly: bool) -> list[bytes]:
    """The object code of all that these functions need. The hot ones are compiled as the kernel is; to optimise the others
    would cost the first kernel of a process more than it gives."""
    work, code = [f.part for f in called], {}
    while work:
        part = work.pop()
        if part not in code:
            compiled = _compiled(part, quickly or not next(iter(parts[part].values())).is_hot)
            code[part] = compiled.code
            work += compiled.calls
    return list(code.values())
