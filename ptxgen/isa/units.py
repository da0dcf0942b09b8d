"""Which unit of a multiprocessor an instruction keeps busy, as far as PTX shows it. For estimates only: the assembler chooses
the machine instructions, merges some (address arithmetic, moves, constants) and expands others (division, square root)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ptxgen.isa.operands import AnyOperand, Immediate
from ptxgen.types import BY_NAME


class Unit(Enum):
    """A unit; the value is what reports call it."""

    FMA = "f32 fma"
    ALU = "integer and logic"
    MULTIPLY = "integer multiply"
    DOT = "dp4a"
    HALF = "f16"
    DOUBLE = "f64"
    CONVERT = "convert"
    SPECIAL = "special functions"
    SHUFFLE = "shuffle"
    TENSOR = "tensor"
    GLOBAL = "global memory"
    SHARED = "shared memory"
    CONSTANT = "parameters"
    CONTROL = "control"


PERMUTES_BYTES = frozenset({"prmt"})
"""Rows that choose bytes from their sources: some fifty operations unless it is known which."""


def by_space(modifiers: Mapping[str, str]) -> Unit:
    """The unit of an access to the state space that the modifiers name."""
    space = modifiers.get("space", "global")
    return Unit.SHARED if space.startswith("shared") else Unit.CONSTANT if space in ("param", "const") else Unit.GLOBAL


def lane_bytes(modifiers: Mapping[str, str], operands: Mapping[str, AnyOperand]) -> int:
    """Bytes that a thread moves with this form of an instruction that reads or writes memory; 4 where its type does not say."""
    size = operands.get("size")
    if isinstance(size, Immediate):
        return int(size.value)
    vector = modifiers.get("vec", modifiers.get("num", "v1"))
    type = BY_NAME.get(modifiers.get("type", "b32"))
    return (type.bytes if type else 4) * int(vector[1:])
