"""Fits the operands of an instruction's text to the places of a row of the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ptxgen.emulator.constants import Constant, ConstantKind
from ptxgen.emulator.lexer import Token
from ptxgen.emulator.program import SINK, Guard, Negated, ParsedOperand, SourceLine, Step, SymbolAddress
from ptxgen.errors import ParseError
from ptxgen.isa.operand_spec import OperandKind, state_space
from ptxgen.isa.operands import Address, AnyOperand, Immediate, LabelRef, Register, Special, Symbol, Vector
from ptxgen.isa.special import BY_NAME as SPECIALS
from ptxgen.isa.table import Instruction, OperandPlace
from ptxgen.types import B32, B64, PRED, DType, Kind

CODE = "code"
"""Where functions are: no state space of PTX, and none whose addresses are emulated."""


@dataclass(frozen=True)
class RawName:
    """A name: of a register that is declared, or of anything else, with an offset in bytes. `space`: the state space
    of a variable or parameter, else empty; `is_element`: of it `name[1]`."""

    name: str
    register: Register | None
    offset: int = 0
    negated: bool = False
    space: str = ""
    is_element: bool = False

    def plain(self) -> ParsedOperand:
        """The register, or the address of a variable."""
        return self.register if self.register is not None else SymbolAddress(self.name, self.offset)

    def __str__(self) -> str:
        sign = "!" if self.negated else ""
        declared = self.register is not None or bool(self.space) or self.name in SPECIALS
        undeclared = "" if declared else ", which is not declared"
        if re.fullmatch(r"%\w+\.[bh][0-7]{1,4}", self.name):
            undeclared = ": bytes and halves of a register cannot be chosen"
        return f"{sign}{self.name}{f'+{self.offset}' if self.offset else ''}{undeclared}"


@dataclass(frozen=True)
class RawAddress:
    """`[base+offset]`."""

    base: RawName | Constant
    offset: int

    def plain(self) -> Address:
        """The address as an operand."""
        if isinstance(self.base, Constant):
            return Address(self.base.operand(B64), self.offset)
        if self.base.register is not None:
            return Address(self.base.register, self.offset)
        return Address(Symbol(self.base.name), self.offset)

    def __str__(self) -> str:
        return "an address"


@dataclass(frozen=True)
class RawVector:
    """`{a, b}`."""

    elements: tuple[Raw, ...]

    def __str__(self) -> str:
        return "a vector"


@dataclass(frozen=True)
class RawPair:
    """`a|b`."""

    elements: tuple[Raw, Raw]

    def __str__(self) -> str:
        return "a pair"


Raw = Constant | RawName | RawAddress | RawVector | RawPair


class _Unfit(Exception):
    """Why an operand does not fit its place."""


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
    row: Instruction, modifiers: Mapping[str, str], place: OperandPlace, operands: Mapping[str, ParsedOperand]
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
        try:
            fitted[place.name] = _fit(place, raw, type, modifiers)
            _check_bounds(row, place, raw)
        except _Unfit as fault:
            complaints.append(f"operand {place.name} {fault}")
            return None
    return fitted


def _check_bounds(row: Instruction, place: OperandPlace, raw: Raw) -> None:
    bounds = row.bounds.get(place.name)
    if bounds is not None and isinstance(raw, Constant) and raw.value not in bounds:
        if not bounds:
            raise _Unfit(f"cannot be {raw}: it is a register")
        allowed = f"{bounds[0]} to {bounds[-1]}" if isinstance(bounds, range) else ", ".join(map(str, bounds))
        step = f" by {bounds.step}" if isinstance(bounds, range) and bounds.step > 1 else ""
        raise _Unfit(f"cannot be {raw}; allowed: {allowed}{step}")


def _fit(place: OperandPlace, raw: Raw, type: DType | None, modifiers: Mapping[str, str]) -> ParsedOperand:
    """The operand that this text is in this place; _Unfit where it can be none."""
    if isinstance(raw, Constant):
        return _fit_constant(place, raw, type or B32, modifiers)
    if isinstance(raw, RawName) and not (raw.is_element and place.spec.kind is OperandKind.ADDRESS):
        return _fit_name(place, raw, type, modifiers)
    if isinstance(raw, RawName):
        return Address(Symbol(raw.name), raw.offset)
    if isinstance(raw, RawAddress) and place.spec.kind is OperandKind.ADDRESS:
        if isinstance(raw.base, Constant) and place.spec.state_space(modifiers) != "local":
            raise _Unfit(f"cannot be [{raw.base}]: an address that is a number is for local memory")
        return raw.plain()
    if isinstance(raw, RawVector):
        if len(raw.elements) == 1 and place.spec.vec and "vec" not in modifiers:  # st.u32 [a], {%r1}
            return _fit_element(place, raw.elements[0], type, modifiers)
        elements = tuple(
            None if _is_sink(element) and place.is_destination else _fit_element(place, element, type, modifiers)
            for element in raw.elements
        )
        if not any(elements):
            raise _Unfit("must have an element that is no sink")
        return Vector(elements)
    raise _Unfit(f"cannot be {raw}")


def _is_sink(raw: Raw) -> bool:
    return isinstance(raw, RawName) and raw.name == SINK


def _fit_element(place: OperandPlace, raw: Raw, type: DType | None, modifiers: Mapping[str, str]) -> Register | Immediate:
    element = None if _is_sink(raw) else _fit(place, raw, type, modifiers)
    if not isinstance(element, Register | Immediate):
        raise _Unfit(f"has an element that cannot be {raw}")
    return element


def _fit_constant(place: OperandPlace, constant: Constant, type: DType, modifiers: Mapping[str, str]) -> Immediate:
    if place.spec.kind is not OperandKind.VALUE and place.spec.kind is not OperandKind.CONSTANT:
        raise _Unfit(f"must be {place.spec.kind.value}, got {constant}")
    if not constant.fits(type):
        raise _Unfit(f"cannot be {constant}: {constant.fault(type)}")
    packed = type.kind is Kind.BITS and place.spec.braces
    if (packed or place.is_whole(modifiers)) and constant.kind is not ConstantKind.INTEGER:
        raise _Unfit(f"must be an integer, got {constant}")
    if place.spec.kind is OperandKind.CONSTANT:
        return Immediate(int(constant.value), type)  # with its sign
    return constant.operand(type)


def _fit_name(place: OperandPlace, raw: RawName, type: DType | None, modifiers: Mapping[str, str]) -> ParsedOperand:
    if raw.negated and place.is_destination:
        raise _Unfit(f"cannot be {raw}: it is written")
    if raw.register is not None:
        if raw.offset:
            raise _Unfit(f"cannot be {raw}: what is added to a register stands in an address, [{raw}]")
        if raw.negated and raw.register.type != PRED:
            raise _Unfit(f"cannot be {raw}: only a predicate is negated so")
        return Negated(raw.register) if raw.negated else raw.register
    special = SPECIALS.get(raw.name)
    if raw.negated or (raw.offset and (special is not None or place.spec.kind is not OperandKind.VALUE)):
        raise _Unfit(f"cannot be {raw}")
    if place.spec.kind is OperandKind.LABEL:
        return LabelRef(raw.name)
    if place.spec.kind is OperandKind.SYMBOL:
        return Symbol(raw.name)
    if _is_sink(raw) and place.is_destination:
        return Register(SINK, type or PRED)
    if special is not None:
        return Special(raw.name, special.type)
    if not raw.space or place.spec.kind is not OperandKind.VALUE:
        raise _Unfit(f"cannot be {raw}")
    if raw.space == CODE:
        raise _Unfit(f"cannot be {raw}, a function, whose address is not emulated")
    space = state_space(modifiers.get("space", ""))
    if space not in ("generic", raw.space):
        raise _Unfit(f"cannot be {raw}, which is in {raw.space} memory, not {space}")
    return SymbolAddress(raw.name, raw.offset)
