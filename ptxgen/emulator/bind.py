"""Fits the operands of an instruction's text to the places of a row of the table."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ptxgen.emulator.lexer import Token, float_of_bits
from ptxgen.emulator.program import Guard, Negated, ParsedOperand, SourceLine, Step, SymbolAddress
from ptxgen.errors import ParseError
from ptxgen.isa.operand_spec import OperandKind
from ptxgen.isa.operands import Address, AnyOperand, Immediate, LabelRef, Register, Special, Symbol, Vector
from ptxgen.isa.special import BY_NAME as SPECIALS
from ptxgen.isa.table import Instruction, Operand
from ptxgen.target import WARP_SIZE
from ptxgen.types import B32, F32, F64, PRED, DType, Kind


@dataclass(frozen=True)
class RawLiteral:
    """A number as spelt: kind is int, f32 or f64 (value is the bits), or decimal."""

    kind: str
    value: int | float

    def bits(self, type: DType) -> int:
        """The bits of this number as `type`."""
        if self.kind in ("f32", "f64"):
            own = 32 if self.kind == "f32" else 64
            if type.is_float and type.bits != own and type.bits in (32, 64):
                return _float_bits(float_of_bits(self.kind, int(self.value)), type)
            return int(self.value)
        if self.kind == "decimal" or (type in (F32, F64)):
            return _float_bits(float(self.value), type)
        return int(self.value)

    def fit(self, type: DType) -> Immediate:
        """This number as an operand of `type`."""
        bits = self.bits(type)
        if type in (F32, F64):
            return Immediate(float_of_bits(type.name, bits), type)
        return Immediate(bits, type)

    def plain(self) -> ParsedOperand:
        """This number as an operand of a call, which has no type of its own."""
        return self.fit(B32)


@dataclass(frozen=True)
class RawName:
    """A name: of a register that is declared, or of anything else, with an offset."""

    name: str
    register: Register | None
    offset: int = 0
    negated: bool = False

    def plain(self) -> ParsedOperand:
        """The register, or the address of a variable."""
        return self.register if self.register is not None else SymbolAddress(self.name, self.offset)


@dataclass(frozen=True)
class RawAddress:
    """`[base+offset]`."""

    base: RawName | RawLiteral
    offset: int

    def plain(self) -> ParsedOperand:
        """The address as an operand."""
        if isinstance(self.base, RawLiteral):
            return Address(self.base.fit(B32), self.offset)
        if self.base.register is not None:
            return Address(self.base.register, self.offset)
        return Address(Symbol(self.base.name), self.offset)


@dataclass(frozen=True)
class RawVector:
    """`{a, b}`."""

    elements: tuple[Raw, ...]


@dataclass(frozen=True)
class RawPair:
    """`a|b`."""

    elements: tuple[Raw, Raw]


Raw = RawLiteral | RawName | RawAddress | RawVector | RawPair


def bind(
    candidates: Sequence[tuple[Instruction, Mapping[str, str]]],
    raws: Sequence[Raw],
    guard: Guard | None,
    opcode: Token,
    source: SourceLine | None,
    fail: Callable[[str, int | None], ParseError],
) -> Step:
    """The step that these operands make with the first row that takes them; ParseError with what each row objects to."""
    complaints: list[str] = []
    for row, modifiers in candidates:
        operands = _place(row, modifiers, raws, complaints)
        if operands is None:
            continue
        checked: dict[str, AnyOperand] = {}
        for name, operand in operands.items():
            if isinstance(operand, Negated):
                checked[name] = operand.register
            elif isinstance(operand, SymbolAddress):
                checked[name] = Symbol(operand.name)
            else:
                checked[name] = operand  # type: ignore[assignment]
        problems = row.problems(modifiers, checked)
        if not problems:
            return Step(row, modifiers, operands, guard, opcode.line, source)
        complaints += problems
    raise fail(f"{opcode.text}: {'; '.join(dict.fromkeys(complaints)) or 'operands do not fit'}", opcode.line)


def place_type(
    row: Instruction, modifiers: Mapping[str, str], place: Operand, operands: Mapping[str, ParsedOperand]
) -> DType | None:
    """The type that the instruction gives this operand; None for addresses, labels and the like."""
    if place.spec.like:
        other = next(o for o in row.operands if o.name == place.spec.like)
        return place_type(row, modifiers, other, operands)
    allowed = place.spec.allowed(modifiers)
    if len(allowed) > 1:
        operand = operands.get(place.name)
        own = operand.type if isinstance(operand, Register | Special) else None
        if own in allowed:
            return own
        if own is not None:
            return next(
                (t for t in allowed if t.bits == own.bits and (own.kind is Kind.BITS or t.kind is own.kind)), allowed[0]
            )
    return allowed[0] if allowed else None


def _place(
    row: Instruction, modifiers: Mapping[str, str], raws: Sequence[Raw], complaints: list[str]
) -> dict[str, ParsedOperand] | None:
    flat: list[Raw] = []
    has_pair = False
    for i, raw in enumerate(raws):
        if isinstance(raw, RawPair):
            if i:
                complaints.append("only a destination can be a pair a|b")
                return None
            has_pair = True
            flat += raw.elements
        else:
            flat.append(raw)
    places = list(row.operands)
    if not has_pair:
        places = [p for p in places if p.name != "dp" or not p.optional]
    surplus = len(places) - len(flat)
    for place in reversed(places.copy()):
        if surplus > 0 and place.optional and not (has_pair and place.name == "dp"):
            places.remove(place)
            surplus -= 1
    if surplus:
        complaints.append(f"takes {sum(not o.optional for o in row.operands)} to {len(row.operands)} operands, got {len(flat)}")
        return None
    registers: dict[str, ParsedOperand] = {
        p.name: r.register for p, r in zip(places, flat, strict=True) if isinstance(r, RawName) and r.register is not None
    }
    fitted: dict[str, ParsedOperand] = {}
    for place, raw in zip(places, flat, strict=True):
        type = place_type(row, modifiers, place, registers)
        operand = _fit(place, raw, type)
        if operand is None:
            complaints.append(f"operand {place.name} cannot be {_spell(raw)}")
            return None
        fitted[place.name] = operand
    return fitted


def _fit(place: Operand, raw: Raw, type: DType | None) -> ParsedOperand | None:
    if isinstance(raw, RawAddress):
        return raw.plain() if place.spec.kind is OperandKind.ADDRESS else None
    if isinstance(raw, RawVector):
        elements: list[Register | Immediate | None] = []
        for element in raw.elements:
            if isinstance(element, RawName) and element.name == "_":
                elements.append(None)
                continue
            inner = _fit(place, element, type)
            if not isinstance(inner, Register | Immediate):
                return None
            elements.append(inner)
        return Vector(tuple(elements))
    if isinstance(raw, RawLiteral):
        if place.spec.kind is OperandKind.ADDRESS:
            return None
        return raw.fit(type or B32)
    if isinstance(raw, RawPair):
        return None
    return _fit_name(place, raw, type)


def _fit_name(place: Operand, raw: RawName, type: DType | None) -> ParsedOperand | None:
    if raw.register is not None:
        if raw.negated:
            return Negated(raw.register) if raw.register.type == PRED else None
        return raw.register
    if raw.negated:
        return None
    if place.spec.kind is OperandKind.LABEL:
        return LabelRef(raw.name)
    if place.spec.kind is OperandKind.SYMBOL:
        return Symbol(raw.name)
    if raw.name == "_" and place.is_destination:
        return Register("_", type or PRED)
    special = SPECIALS.get(raw.name)
    if special is not None:
        return Special(raw.name, special.type)
    if raw.name == "WARP_SZ":
        return Immediate(WARP_SIZE, type or B32)
    return None if raw.name.startswith("%") else SymbolAddress(raw.name, raw.offset)


def _spell(raw: Raw) -> str:
    if isinstance(raw, RawName):
        if re.fullmatch(r"%\w+\.[bh][0-7]{1,4}", raw.name):
            return f"{raw.name}: bytes and halves of a register cannot be chosen"
        return raw.name if raw.register or not raw.name.startswith("%") else f"{raw.name}, which is not declared"
    if isinstance(raw, RawLiteral):
        return str(raw.value)
    return {RawAddress: "an address", RawVector: "a vector", RawPair: "a pair"}[raw.__class__]


def _float_bits(value: float, type: DType) -> int:
    if type.bits == 64:
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000
