"""What can stand in an operand place of an instruction: plain data, shared by the builder's IR and the text parser."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ptxgen.types import B32, F32, F64, DType


@dataclass(frozen=True)
class _Named:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Register(_Named):
    """A virtual register, e.g. %r3. `name` holds the percent sign; `type` is the type it carries."""

    type: DType


@dataclass(frozen=True)
class Immediate:
    """A constant. `value` is an int for integer and bit types, a float for f32 and f64 (spelt bit by bit in the text:
    PTX ISA 4.5.2 has no decimal float that survives the assembler unchanged)."""

    value: int | float
    type: DType

    def __str__(self) -> str:
        if self.type == F32:
            return f"0f{struct.unpack('<I', struct.pack('<f', self.value))[0]:08X}"
        if self.type == F64:
            return f"0d{struct.unpack('<Q', struct.pack('<d', self.value))[0]:016X}"
        return str(int(self.value))


@dataclass(frozen=True)
class Special(_Named):
    """A read-only special register, e.g. %tid.x (PTX ISA 10)."""

    type: DType


@dataclass(frozen=True)
class Symbol(_Named):
    """The name of a variable or parameter, used as an address or as the base of one."""

    type: DType = B32


@dataclass(frozen=True)
class Callee(Symbol):
    """A function that is called: `(results), name, (arguments)`, which are variables in parameter space."""

    results: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        results = f"({', '.join(self.results)}), " if self.results else ""
        return f"{results}{self.name}, ({', '.join(self.arguments)})"


@dataclass(frozen=True)
class Address:
    """A memory operand: [base + offset], offset in bytes (PTX ISA 6.4.1)."""

    base: Register | Symbol | Immediate
    offset: int = 0

    def __str__(self) -> str:
        return f"[{self.base}+{self.offset}]" if self.offset else f"[{self.base}]"


@dataclass(frozen=True)
class Vector:
    """{%f1, %f2, ...}: several registers in one operand place. An element may be None: the sink `_`."""

    elements: tuple[Register | Immediate | None, ...]

    def __str__(self) -> str:
        return "{" + ", ".join("_" if e is None else str(e) for e in self.elements) + "}"


@dataclass(frozen=True)
class LabelRef(_Named):
    """The target of a branch."""


AnyOperand = Register | Immediate | Special | Symbol | Address | Vector | LabelRef


def kind(operand: AnyOperand) -> object:
    """What the choice and the check of a row may depend on: which sort of operand it is, and its type."""
    if isinstance(operand, Register):
        return operand.type
    if isinstance(operand, Address):
        return Address, operand.base.type if isinstance(operand.base, Register) else None
    if isinstance(operand, Vector):
        return tuple(None if element is None else kind(element) for element in operand.elements)
    return (type(operand), operand.type) if isinstance(operand, Immediate | Special) else type(operand)


def registers(operand: AnyOperand | None) -> list[Register]:
    """The registers inside an operand: itself, the base of an address, the elements of a vector."""
    if isinstance(operand, Register):
        return [operand]
    base = operand.base if isinstance(operand, Address) else operand
    elements = base.elements if isinstance(base, Vector) else (base,)
    return [element for element in elements if isinstance(element, Register)]
