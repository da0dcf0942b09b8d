"""Which unit of a multiprocessor an instruction keeps busy, as far as PTX shows it. For estimates only: the assembler chooses
the machine instructions, merges some (address arithmetic, moves, constants) and expands others (division, square root)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ptxgen.isa.operands import AnyOperand, Immediate
from ptxgen.isa.table import Instruction, Modifiers
from ptxgen.types import BY_NAME


class Unit(Enum):
    """The value is what reports call it."""

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


_MULTIPLIES = frozenset({"mul", "mul_hi", "mul_wide", "mad", "mad_hi", "mad_wide", "mul24", "mad24", "mad_cc", "madc"})
_QUARTER_RATE = frozenset({"popc", "clz", "bfind", "brev", "redux"})
_ITERATED = frozenset({"div", "rcp", "sqrt", "rem"})
_FLOAT_ALU = frozenset({"testp", "copysign", "abs", "neg", "min", "max"})
_BY_FAMILY = {
    "approximate": Unit.SPECIAL, "half": Unit.HALF, "convert": Unit.CONVERT, "control": Unit.CONTROL, "compare": Unit.ALU,
    "logic": Unit.ALU, "move": Unit.ALU,
}  # fmt: skip


def unit(row: Instruction, modifiers: Modifiers) -> Unit:
    """The unit that this form of the instruction runs on."""
    if row.name in _ITERATED or row.name in _QUARTER_RATE:
        return Unit.SPECIAL
    if row.family in ("integer", "extended"):
        return Unit.DOT if row.name in ("dp4a", "dp2a") else Unit.MULTIPLY if row.name in _MULTIPLIES else Unit.ALU
    if row.family == "floating":
        return Unit.ALU if row.name in _FLOAT_ALU else Unit.DOUBLE if modifiers.get("type") == "f64" else Unit.FMA
    if row.family == "warp":
        return Unit.SHUFFLE if row.name == "shfl" else Unit.ALU
    if row.family == "async_copy":
        return Unit.GLOBAL if "size" in {place.name for place in row.operands} else Unit.CONTROL
    if row.family == "matrix":
        return Unit.TENSOR if row.name == "mma" else Unit.SHARED
    if row.family in ("memory", "atomic"):
        if row.name in ("cvta", "isspacep"):
            return Unit.ALU
        space = modifiers.get("space", "global")
        return Unit.SHARED if space.startswith("shared") else Unit.CONSTANT if space in ("param", "const") else Unit.GLOBAL
    return _BY_FAMILY.get(row.family, Unit.ALU)


def lane_bytes(row: Instruction, modifiers: Modifiers, operands: Mapping[str, AnyOperand]) -> int:
    """Bytes that a thread moves with this form of an instruction that reads or writes memory; 4 where its type does not say."""
    size = operands.get("size")
    if isinstance(size, Immediate):
        return int(size.value)
    vector = modifiers.get("vec", modifiers.get("num", "v1"))
    type = BY_NAME.get(modifiers.get("type", "b32"))
    return (type.bytes if type else 4) * int(vector[1:])
