"""A kernel as plain data: parameters, shared arrays and a flat list of instructions. Written by the builder, read by the
verifier and the module writer; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ptxgen.errors import Location
from ptxgen.isa import special
from ptxgen.isa.operands import AnyOperand, Register, Special, registers
from ptxgen.isa.printf import VPRINTF
from ptxgen.isa.table import Instruction, OperandPlace
from ptxgen.types import DType


@dataclass(frozen=True)
class Parameter:
    """An entry parameter. A pointer has type u64, the alignment in bytes of what it points at (0 for a plain number) and a note
    that says what that is, so that the text is documented."""

    name: str
    type: DType
    note: str = ""
    align: int = 0


@dataclass(frozen=True)
class SharedArray:
    """A static array in shared memory: `count` elements of `type`, aligned to `align` bytes, and the line that made it."""

    name: str
    type: DType
    count: int
    align: int
    where: Location | None = None

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.type.bytes * self.count


@dataclass(frozen=True)
class ConstantArray:
    """An array of the module in global memory that holds these numbers from the start, and that no kernel writes."""

    name: str
    type: DType
    values: tuple[int, ...]
    align: int = 16


@dataclass(frozen=True)
class Op:
    """One instruction: a row of the table, its modifiers and operands, an optional guard predicate, and who wrote it."""

    row: Instruction
    modifiers: Mapping[str, str]
    operands: Mapping[str, AnyOperand]
    where: Location
    guard: Register | None = None
    guard_negated: bool = False

    @cached_property
    def written(self) -> tuple[Register, ...]:
        """The registers that it writes; a guarded instruction may leave them as they are."""
        return _registers(self.operands, self.row.results)

    @cached_property
    def read(self) -> tuple[Register, ...]:
        """The registers that the instruction reads, its guard among them."""
        guard = () if self.guard is None else (self.guard,)
        return (*guard, *_registers(self.operands, self.row.sources))

    @cached_property
    def ptx(self) -> tuple[int, int]:
        """The least PTX version that has it and the special registers that it names."""
        names = (operand.name for operand in self.operands.values() if isinstance(operand, Special))
        return max((self.row.need(self.modifiers)[1], *(special.BY_NAME[name].need[1] for name in names)))

    @property
    def opcode(self) -> str:
        """The opcode text, e.g. `add.rn.f32`."""
        return self.row.opcode(self.modifiers)

    @cached_property
    def text(self) -> str:
        """The instruction as PTX, which every target's module has."""
        guard = f"@{'!' if self.guard_negated else ''}{self.guard} " if self.guard else ""
        return guard + self.row.text(self.modifiers, self.operands)

    def __str__(self) -> str:
        return self.text


def _registers(operands: Mapping[str, AnyOperand], places: Sequence[OperandPlace]) -> tuple[Register, ...]:
    return tuple(register for place in places for register in registers(operands.get(place.name)))


@dataclass(frozen=True)
class Label:
    """A place that branches name."""

    name: str


@dataclass(frozen=True)
class Remark:
    """A comment that the author wants in the text (ASCII)."""

    text: str
    where: Location | None = None


Line = Op | Label | Remark

DYNAMIC_SHARED = "dynamic_shared"
"""The name of the shared memory that a launch asks for."""
PRINT_FORMAT, PRINT_VALUES, PRINT_STATUS = "print_format", "print_values", "print_status"
"""The parameters of a call that prints, and what it returns."""
PRINT_ARGUMENTS = "print_arguments"
"""Local memory of a thread, where the values that are printed stand for the call."""


@dataclass
class Function:
    """One entry point. `summary` and `kernel` (the type with its shape) are comments of the text."""

    name: str
    parameters: tuple[Parameter, ...]
    shared: list[SharedArray] = field(default_factory=list)
    constants: dict[str, ConstantArray] = field(default_factory=dict)  # by name
    body: list[Line] = field(default_factory=list)
    max_threads: tuple[int, int, int] = (1, 1, 1)
    resident: int = 1  # blocks that a multiprocessor must be able to hold
    most_registers: int = 0  # of a thread; 0: as many as that leaves
    dynamic_shared: int = 0  # bytes of shared memory that a launch asks for
    dynamic_align: int = 0  # of the array that names them; 0 if none does
    cooperative: bool = False  # whether the blocks wait for each other, so that a launch must hold all of them at once
    ranks: int = 1  # launches on as many devices that wait for each other
    summary: str = ""
    kernel: str = ""
    formats: list[str] = field(default_factory=list)  # what it prints by, each once
    print_bytes: int = 0  # of the values of the largest print
    target_matters: bool = False  # whether the author asked what it is written for; else it is the same for every newer GPU

    @property
    def shared_bytes(self) -> int:
        """Static shared memory, alignment included."""
        total = 0
        for array in self.shared:
            total = -(-total // array.align) * array.align + array.bytes
        return total

    @property
    def variables(self) -> tuple[str, ...]:
        """What instructions may name: parameters, shared and constant arrays, and what printing needs."""
        dynamic = (DYNAMIC_SHARED,) if self.dynamic_align else ()
        printing = (
            (VPRINTF, PRINT_FORMAT, PRINT_VALUES, PRINT_STATUS, PRINT_ARGUMENTS, *self.format_names) if self.formats else ()
        )
        arrays = (*(array.name for array in self.shared), *self.constants)
        return (*(p.name for p in self.parameters), *arrays, *dynamic, *printing)

    @property
    def format_names(self) -> tuple[str, ...]:
        """The variables of the module that hold the formats."""
        return tuple(f"{self.name}_format{number}" for number in range(len(self.formats)))

    def add_format(self, format: str) -> str:
        """The variable that holds a format."""
        if format not in self.formats:
            self.formats.append(format)
        return self.format_names[self.formats.index(format)]

    @property
    def ops(self) -> tuple[Op, ...]:
        """The instructions of the body, in the order of the text."""
        return tuple(line for line in self.body if isinstance(line, Op))

    @property
    def registers(self) -> tuple[Register, ...]:
        """Every register that the instructions name, with repetitions, in the order of the text."""
        return tuple(register for op in self.ops for register in (*op.read, *op.written))
