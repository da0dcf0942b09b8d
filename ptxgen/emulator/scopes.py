"""What the names in a function mean: each pair of braces of PTX declares registers, variables and labels of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass

from ptxgen.emulator.program import ParsedFunction, Step
from ptxgen.errors import ParseError
from ptxgen.isa.effects import Effect
from ptxgen.isa.operands import Register
from ptxgen.types import DType


class Scope:
    """What a pair of braces declares. `names`: of each register, variable and parameter, the name that is unique in the
    function; `ranges`: how many registers `%r<100>` names, and of which type; each is declared when it is first used; `labels`:
    of each label, the name that is unique in the function; `lists`: the labels of each `.branchtargets`; `other`: what is
    declared and not emulated (`.callprototype`)."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.ranges: dict[str, tuple[int, DType]] = {}
        self.labels: dict[str, str] = {}
        self.lists: dict[str, BranchList] = {}
        self.other: set[str] = set()

    def in_range(self, name: str) -> DType | None:
        """The type of a register that a range names: `%r12` may be number 12 of `%r<100>`, or 2 of `%r1<10>`."""
        for split in range(len(name) - 1, max(len(name.rstrip("0123456789")), len(name) - 7) - 1, -1):
            stem, index = name[:split], name[split:]
            if stem in self.ranges and str(int(index)) == index and int(index) < self.ranges[stem][0]:
                return self.ranges[stem][1]
        return None

    def declares(self, name: str) -> bool:
        """Whether a register, variable, parameter, label or list of this name is declared."""
        return any(name in names for names in (self.names, self.labels, self.lists, self.other)) or bool(self.in_range(name))

    def shares(self, stem: str, count: int) -> str:
        """A name that is declared and that a range of `count` names would declare, too; "" if there is none."""
        if stem in self.ranges:
            return f"{stem}0"
        member = re.compile(f"{re.escape(stem)}(0|[1-9][0-9]{{0,6}})")
        for name in (*self.names, *self.labels, *self.lists, *self.other):
            match = member.fullmatch(name)
            if match and int(match[1]) < count:
                return name
        return ""


@dataclass(frozen=True)
class BranchList:
    """The labels of a `.branchtargets`, as its own scopes know them."""

    labels: tuple[str, ...]
    scopes: tuple[Scope, ...]


@dataclass(frozen=True)
class _Jump:
    """Labels that a step (None: only a list) names before all of them need have been read."""

    step: Step | None
    labels: tuple[str, ...]
    scopes: tuple[Scope, ...]
    line: int


class Names:
    """The names of one function while it is read; `module` are those of the module's variables. What is wrong with a name is a
    ParseError, which `fail` makes of a message and a line."""

    def __init__(self, function: ParsedFunction, module: Container[str], fail: Callable[[str, int | None], ParseError]) -> None:
        self.function, self.scopes = function, [Scope()]
        self._module, self._fail = module, fail
        self._jumps: list[_Jump] = []
        self._labels: dict[str, int] = {}
        self._parameters: set[str] = set()

    def open(self) -> None:
        """Begin the scope of a `{`."""
        self.scopes.append(Scope())

    def close(self) -> None:
        """End the innermost scope."""
        self.scopes.pop()

    def declare_parameter(self, name: str, line: int) -> None:
        """Note a parameter or result in parameter space, which keeps its name."""
        self._check_new(self.scopes[0], name, line)
        self.scopes[0].names[name] = name
        self._parameters.add(name)

    def declare(self, name: str, line: int, scope: Scope | None = None) -> str:
        """The name that is unique in the function for one that is declared in a scope, by default the innermost."""
        if scope is None:
            scope = self.scopes[-1]
            self._check_new(scope, name, line)
        unique, n, own = name, 1, self.function
        while unique in own.registers or unique in own.variables or unique in self._parameters or unique in self._module:
            unique, n = f"{name}'{n}", n + 1
        scope.names[name] = unique
        return unique

    def declare_register(self, name: str, kind: DType, line: int, scope: Scope | None = None) -> Register:
        """The register that a declaration makes."""
        register = Register(self.declare(name, line, scope), kind)
        self.function.registers[register.name] = register
        return register

    def declare_range(self, stem: str, count: int, kind: DType, line: int) -> None:
        """Note the registers of `%r<count>`."""
        scope = self.scopes[-1]
        shared = scope.shares(stem, count)
        if shared:
            raise self._fail(f"{shared} is declared twice in the same braces", line)
        scope.ranges[stem] = count, kind

    def look_up(self, name: str) -> str | None:
        """The unique name of the register, variable or parameter that the innermost scope calls so; None if it is none of the
        function's."""
        for scope in reversed(self.scopes):
            if name in scope.names:
                return scope.names[name]
            kind = scope.in_range(name)
            if kind is not None:
                return self.declare_register(name, kind, 0, scope).name
            if scope.declares(name):
                return None
        return None

    def declare_label(self, name: str, line: int) -> str:
        """The name that is unique in the function for a label."""
        scope = self.scopes[-1]
        self._check_new(scope, name, line)
        number = self._labels.get(name, 0)
        self._labels[name] = number + 1
        scope.labels[name] = f"{name}'{number}" if number else name
        return scope.labels[name]

    def declare_list(self, name: str, labels: tuple[str, ...], line: int) -> None:
        """Note the labels of `.branchtargets`, which may come later."""
        scope = self.scopes[-1]
        self._check_new(scope, name, line)
        scope.lists[name] = BranchList(labels, tuple(self.scopes))
        self._jumps.append(_Jump(None, labels, tuple(self.scopes), line))

    def declare_other(self, name: str, line: int) -> None:
        """Note a name that only indirect calls could use."""
        scope = self.scopes[-1]
        self._check_new(scope, name, line)
        scope.other.add(name)

    def jump(self, step: Step, label: str) -> None:
        """Have a branch go where its label is, once that is known."""
        if step.row.effect is not Effect.INDEXED_BRANCH:
            self._jumps.append(_Jump(step, (label,), tuple(self.scopes), step.line))
            return
        scope = next((scope for scope in reversed(self.scopes) if scope.declares(label)), None)
        if scope is None or label not in scope.lists:
            raise self._fail(f"{label} is not a list of branch targets that is declared before", step.line)
        targets = scope.lists[label]
        self._jumps.append(_Jump(step, targets.labels, targets.scopes, step.line))

    def resolve(self) -> None:
        """At the function's end: the targets of all its branches."""
        for jump in self._jumps:
            targets = tuple(self._label(name, jump) for name in jump.labels)
            if jump.step is not None:
                jump.step.targets = targets

    def _label(self, name: str, jump: _Jump) -> str:
        for scope in reversed(jump.scopes):
            if name in scope.labels:
                return scope.labels[name]
            if scope.declares(name):
                raise self._fail(f"branch to {name}, which is not a label", jump.line)
        elsewhere = " in these braces or those around them" if name in self._labels else ""
        raise self._fail(f"branch to {name}, which is not defined{elsewhere}", jump.line)

    def _check_new(self, scope: Scope, name: str, line: int) -> None:
        if scope.declares(name):
            raise self._fail(f"{name} is declared twice in the same braces", line)
