"""What PTX text says, as plain data: functions, variables and decoded instructions. Reading it is parse.py's work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptxgen.isa.operands import AnyOperand, Register
from ptxgen.isa.table import Instruction
from ptxgen.types import DType


@dataclass(frozen=True)
class Negated:
    """`!%p` in an operand place."""

    register: Register

    def __str__(self) -> str:
        return f"!{self.register}"


@dataclass(frozen=True)
class SymbolAddress:
    """`name+offset` used as a value: the address of a variable within its own state space."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.offset else self.name


ParsedOperand = AnyOperand | Negated | SymbolAddress | tuple[Register | None, ...]


@dataclass(frozen=True)
class SourceLine:
    """The author's line that a `.loc` names."""

    file: int
    line: int


@dataclass(frozen=True)
class Guard:
    """`@%p` or `@!%p`."""

    register: Register
    negated: bool


@dataclass
class Step:
    """One instruction. `operands` follow the places of `row`; a place that the text leaves out has no entry."""

    row: Instruction
    modifiers: Mapping[str, str]
    operands: dict[str, ParsedOperand]
    guard: Guard | None
    line: int
    source: SourceLine | None
    targets: tuple[str, ...] = ()


@dataclass
class Call:
    """`call (results), callee, (arguments)` of a function of this module."""

    callee: str
    results: tuple[str, ...]
    arguments: tuple[ParsedOperand, ...]
    guard: Guard | None
    line: int
    source: SourceLine | None


@dataclass
class Label:
    """A place to branch to."""

    name: str
    line: int


Item = Step | Call | Label


@dataclass
class Variable:
    """A variable. `size` in bytes; `initial` its bytes if the text gives them; `pointers` (offset, symbol, addend) to add."""

    name: str
    space: str
    type: DType
    size: int
    alignment: int
    initial: bytes | None = None
    pointers: tuple[tuple[int, str, int], ...] = ()
    external: bool = False


@dataclass(frozen=True)
class Parameter:
    """A kernel or function parameter; `count` elements for an array, else 1; `offset` and `size` in bytes."""

    name: str
    type: DType
    size: int
    alignment: int
    offset: int
    is_array: bool = False
    register: Register | None = None


@dataclass
class Function:
    """An entry or a function. `most_threads` and `block` are what .maxntid and .reqntid allow a launch, None where absent."""

    name: str
    is_entry: bool
    line: int
    parameters: list[Parameter] = field(default_factory=list)
    results: list[Parameter] = field(default_factory=list)
    registers: dict[str, Register] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    branch_lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_defined: bool = True
    most_threads: int | None = None
    block: tuple[int, int, int] | None = None


@dataclass
class Program:
    """A module. `files` are the names that `.file` gives numbers; `target` is as spelt, such as sm_90."""

    version: tuple[int, int]
    target: str
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(f.name for f in self.functions.values() if f.is_entry)
