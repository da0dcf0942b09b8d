"""What PTX text says, as plain data: functions, variables and decoded instructions. Reading it is parse.py's work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptxgen.isa.operands import AnyOperand, Register
from ptxgen.isa.table import Instruction
from ptxgen.types import B64, B128, S64, U64, DType

SINK = "_"
"""The name in a destination's place whose value is not wanted."""


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
    """One instruction. `operands` follow the places of `row`; a place that the text leaves out has no entry. `targets`: of a
    branch, the labels that it may go on at, by their names in the function."""

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
class ParsedLabel:
    """A place to branch to; its name is unique in the function."""

    name: str
    line: int


Item = Step | Call | ParsedLabel


@dataclass(frozen=True)
class Pointer:
    """An address that stands in a variable's memory at the start: of the variable or function `symbol`, plus `addend` bytes, in
    `size` bytes at `offset`; of it only byte number `byte`, if that is given."""

    offset: int
    symbol: str
    addend: int
    size: int
    byte: int | None = None

    def value(self, address: int) -> int:
        """What stands there if the symbol lies at this address."""
        whole = address + self.addend & ((1 << 64) - 1)
        return (whole if self.byte is None else whole >> 8 * self.byte & 0xFF) & ((1 << 8 * self.size) - 1)


@dataclass
class Initial:
    """What a text puts into a variable: its first bytes, and addresses among them. `count`: how many elements stand in the
    outermost braces."""

    data: bytearray = field(default_factory=bytearray)
    pointers: list[Pointer] = field(default_factory=list)
    count: int = 0


@dataclass
class Variable:
    """A variable. `size` in bytes; `initial` is what the text gives it."""

    name: str
    space: str
    type: DType
    size: int
    alignment: int
    initial: Initial = field(default_factory=Initial)
    external: bool = False


@dataclass(frozen=True)
class ParsedParameter:
    """A kernel or function parameter; `count` elements for an array, else 1; `offset` and `size` in bytes."""

    name: str
    type: DType
    size: int
    alignment: int
    offset: int
    is_array: bool = False
    register: Register | None = None

    @property
    def takes_address(self) -> bool:
        """Whether it can hold the address of an array: a struct of 8 bytes does not."""
        return not self.is_array and self.type in (U64, S64, B64)

    @property
    def is_struct(self) -> bool:
        """Whether its bytes are passed as they are: C++ compilers write a struct by value as `.b8 s[12]`."""
        return self.is_array or self.type == B128

    @property
    def declared(self) -> str:
        """Its type as the text has it, such as `.u64` or `.b8[12]`."""
        return f".{self.type}{f'[{self.size // self.type.bytes}]' if self.is_array else ''}"


@dataclass
class ParsedFunction:
    """An entry or a function. `most_threads` and `block` are what .maxntid and .reqntid allow a launch, None where absent."""

    name: str
    is_entry: bool
    line: int
    parameters: list[ParsedParameter] = field(default_factory=list)
    results: list[ParsedParameter] = field(default_factory=list)
    registers: dict[str, Register] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    is_defined: bool = True
    most_threads: int | None = None
    block: tuple[int, int, int] | None = None


@dataclass
class Program:
    """A module. `files` are the names that `.file` gives numbers; `target` is as spelt, such as sm_90."""

    version: tuple[int, int]
    target: str
    functions: dict[str, ParsedFunction] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(f.name for f in self.functions.values() if f.is_entry)
