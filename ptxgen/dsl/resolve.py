"""Finds the row of the instruction table that fits what an author wrote, and says in words why none does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, cast

from ptxgen.errors import Location, TypeMismatch
from ptxgen.isa.operand_spec import OperandKind, OperandSpec, element_of
from ptxgen.isa.operands import Address, AnyOperand, Immediate, Register, Special, Vector, kind
from ptxgen.isa.table import Instruction, OperandPlace
from ptxgen.types import BY_NAME, PRED, S32, DType, Kind

Source = AnyOperand | int | float
LARGEST_F32 = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True)
class Fit:
    """A row with its modifiers, its typed sources, and the types its destinations get."""

    row: Instruction
    modifiers: dict[str, str]
    sources: dict[str, AnyOperand]
    destinations: dict[str, tuple[DType, int]]  # type and vector length

    def with_sources(self, sources: Sequence[Source]) -> Fit:
        """The same fit for other sources of the same kinds. Constants are made again: 0.0 and -0.0 are equal in Python."""
        typed: dict[str, AnyOperand] = {}
        for (place, old), source in zip(self.sources.items(), sources, strict=True):
            if isinstance(source, int | float):
                typed[place] = _constant(source, cast(Immediate, old).type)
            else:
                typed[place] = source
        return Fit(self.row, self.modifiers, typed, self.destinations)


@dataclass(frozen=True)
class Miss:
    """Why a row does not fit, and how far it came: 0 no such modifier, 1 not this value of it, 2 not so many operands,
    3 a modifier is missing, 4 a constant, 5 vectors of other lengths, 6 a type. The row that came furthest is the one that the
    author meant. `missing`: the modifiers that are, with their values."""

    stage: int
    problems: list[str]
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def resolve(
    name: str,
    rows: Sequence[Instruction],
    sources: Sequence[Source],
    modifiers: Mapping[str, str],
    result: DType | None,
    where: Callable[[], Location],
) -> Fit:
    """The first row that takes these sources under these modifiers, those for older GPUs and PTX first; a row that names the
    sources' own type comes before one that moves their bits. TypeMismatch if none does. `result` is the type the author
    wants for the destination, where the sources do not settle it."""
    key = (name, tuple(map(_kind, sources)), tuple(modifiers.items()), result)
    fit = _fits.get(key)
    if fit is not None:
        return fit.with_sources(sources)
    rows = sorted(rows, key=lambda row: (row.sm, row.ptx))
    for as_bits in (False, True):
        misses: list[tuple[Miss, Instruction]] = []
        for row in rows:
            outcome = _fit(row, sources, modifiers, result, as_bits)
            if isinstance(outcome, Fit):
                _fits[key] = outcome
                return outcome
            misses.append((outcome, row))
    furthest = max(miss.stage for miss, _ in misses)
    meant = [row for miss, row in misses if miss.stage >= min(furthest, 3)]
    types = [str(s.type) if isinstance(s, Register | Special) else None for s in sources]
    if len(set(filter(None, types))) > 1 and all(len(_groups(row, len(sources))) == 1 for row in meant):
        first = next(t for t in types if t)
        other, place = next((t, i) for i, t in enumerate(types) if t and t != first)
        ordinal = ("first", "second", "third", "fourth")[min(place, 3)]
        hint = f"convert the {ordinal} with k.{first}(...)" if BY_NAME[other] != PRED else ""
        raise TypeMismatch(f"{name} needs operands of one type, got {' and '.join(t for t in types if t)}", where(), hint)
    said = [miss for miss, _ in misses if miss.stage == furthest]
    problems = _unsettled(said) if furthest == 3 else min((miss.problems for miss in said), key=len)
    got = ", ".join(map(_shown, sources))
    forms = "; ".join(
        sorted({r.opcode({s.name: "{" + s.name + "}" for s in r.modifiers if not s.optional}) for r in meant})[:6]
    )
    raise TypeMismatch(f"{name} does not take ({got}): {'; '.join(problems)}", where(), f"forms: {forms}")


_fits: dict[tuple[Any, ...], Fit] = {}
"""The fit of sources of these kinds, so that a kernel's thousandth `add` is not a search. A constant counts with its
value: which row takes it must not depend on what was written before."""


def _shown(source: Source) -> str:
    """A source by its type, `4 x f16x2` for a vector; a constant or an address as it is."""
    if isinstance(source, Register | Special):
        return str(source.type)
    if isinstance(source, Vector):
        kinds = dict.fromkeys(str(one.type) for one in source.elements if one is not None)
        return f"{len(source.elements)} x {' and '.join(kinds)}"
    return str(source)


def _unsettled(misses: Sequence[Miss]) -> list[str]:
    """What the author must say: the modifiers that the fewest are missing for, with the values of all rows that miss them."""
    problems = []
    for name in min((miss.missing for miss in misses), key=len):
        values = dict.fromkeys(value for miss in misses for value in miss.missing.get(name, ()))
        problems.append(f"needs {name}=, one of {', '.join(values)}")
    return problems


def _kind(source: Source) -> object:
    """What the choice of a row may depend on."""
    return (type(source), source) if isinstance(source, int | float) else kind(source)


def _groups(row: Instruction, count: int) -> set[OperandSpec]:
    """The different types that the row's first `count` sources may have."""
    return {place.spec.element for place in row.sources[:count] if place.spec.kind is OperandKind.VALUE}


def _fit(
    row: Instruction, sources: Sequence[Source], chosen: Mapping[str, str], result: DType | None, as_bits: bool
) -> Fit | Miss:
    slots = {slot.name: slot for slot in row.modifiers}
    for name, value in chosen.items():
        if name not in slots:
            return Miss(0, [f"has no modifier {name!r}; it has {', '.join(slots) or 'none'}"])
        if value not in slots[name].values:
            return Miss(1, [f"{name} may be {', '.join(slots[name].values)}, not {value!r}"])
    modifiers = {**row.defaults, **chosen}
    needed = sum(not place.optional for place in row.sources)
    if not needed <= len(sources) <= len(row.sources):
        return Miss(2, [f"takes {needed} operands, got {len(sources)}"])
    bound = dict(zip((place.name for place in row.sources), sources, strict=False))

    for place in row.sources:
        _infer(row, place, _type_of(bound.get(place.name)), modifiers, as_bits)
    for place in row.destinations:
        if not place.name.startswith("dp"):
            _infer(row, place, result, modifiers, as_bits)
    missing = {s.name: s.values for s in row.modifiers if not s.optional and s.name not in modifiers}
    if missing:
        return Miss(3, [], missing)

    typed: dict[str, AnyOperand] = {}
    for place in row.sources:
        if place.name not in bound:
            continue
        source = bound[place.name]
        if isinstance(source, int | float):
            type = _constant_type(row, place, modifiers, bound, result)
            problem = _constant_problem(place, source, type)
            if problem or type is None:
                return Miss(4, [problem or f"the type of the constant {source} is not settled by the other operands"])
            typed[place.name] = _constant(source, type)
        else:
            typed[place.name] = source
    destinations = {}
    for place in row.destinations:
        if place.optional:
            continue
        type = _destination_type(row, place, modifiers, typed, result)
        destinations[place.name] = (type, place.spec.length(modifiers))
    probe: dict[str, AnyOperand] = {name: _stand_in(type, length) for name, (type, length) in destinations.items()}
    problems = row.problems(modifiers, {**probe, **typed}, strict=True) or _mixed(row, typed)
    if not problems:
        return Fit(row, modifiers, typed, destinations)
    return Miss(6 if all(_has_length(place, typed.get(place.name), modifiers) for place in row.sources) else 5, problems)


def _has_length(place: OperandPlace, source: AnyOperand | None, modifiers: Mapping[str, str]) -> bool:
    if place.spec.kind is not OperandKind.VALUE or source is None:
        return True
    length = len(source.elements) if isinstance(source, Vector) else 1
    return length == place.spec.length(modifiers)


def _stand_in(type: DType, length: int) -> AnyOperand:
    register = Register("%_", type)
    return register if length == 1 else Vector((register,) * length)


def _type_of(source: Source | None) -> DType | None:
    if isinstance(source, Register | Special | Immediate):
        return source.type
    if isinstance(source, Vector) and isinstance(source.elements[0], Register):
        return source.elements[0].type
    return None


def _mixed(row: Instruction, typed: Mapping[str, AnyOperand]) -> list[str]:
    """A `.b` form takes registers of any type, but the DSL does not let `u32 & s32` through: only plain bits mix."""
    seen: dict[OperandSpec, tuple[str, DType]] = {}
    for place in row.sources:
        type = _type_of(typed.get(place.name))
        if type is None or type.kind is Kind.BITS or not place.spec.names_type:
            continue
        name, first = seen.setdefault(place.spec, (place.name, type))
        if type != first:
            return [f"operands {name} and {place.name} must be of one type, got {first} and {type}"]
    return []


def _infer(row: Instruction, place: OperandPlace, type: DType | None, modifiers: dict[str, str], as_bits: bool) -> None:
    """Settle the modifier that names this operand's type, or that of its elements, if there is one and it is not given."""
    elements = place.spec.holds_modifier
    if elements and type is not None and elements not in modifiers:
        values = next(slot.values for slot in row.modifiers if slot.name == elements)
        if element_of(type) in values:
            modifiers[elements] = element_of(type)
    name = place.spec.modifier
    if type is None or not place.spec.names_type or name in modifiers:
        return
    values = next(slot.values for slot in row.modifiers if slot.name == name)
    bits = f"b{type.bits}"
    if type.name in values:
        modifiers[name] = type.name
    elif as_bits and bits in values and not type.is_float:
        modifiers[name] = bits


def _constant(value: float, type: DType) -> Immediate:
    return Immediate(value if type.is_float else int(value), type)


def _constant_type(
    row: Instruction, place: OperandPlace, modifiers: Mapping[str, str], bound: Mapping[str, Source], result: DType | None
) -> DType | None:
    if place.spec.kind is OperandKind.CONSTANT:
        return S32
    if place.spec.like:
        return _type_of(bound.get(place.spec.like)) or result
    for other in row.sources:  # the like operand's own type, which may say more than the b32 that the opcode spells
        if place.spec.names_type and other.spec == place.spec and (type := _type_of(bound.get(other.name))) is not None:
            return type
    if result is not None and result.is_integer and any(place.spec == d.spec for d in row.destinations):
        return result
    allowed = place.spec.allowed(modifiers)
    return allowed[0] if allowed else None


def _constant_problem(place: OperandPlace, value: float, type: DType | None) -> str:
    if type is None:
        return ""
    if type == PRED:
        return f"operand {place.name} must be a predicate, got the constant {value}"
    if type.is_float:
        if type.name not in ("f32", "f64"):
            return f"PTX has no {type} constants; convert one with k.{type}(...)"
        fits = type.name == "f64" or not isfinite(value) or abs(value) <= LARGEST_F32
        return "" if fits else f"the constant {value} does not fit {type}"
    if isinstance(value, float):
        return f"operand {place.name} is {type}, got the float constant {value}"
    low = -(1 << (type.bits - 1)) if type.kind is not Kind.UNSIGNED else 0
    high = (1 << (type.bits - type.is_signed)) - 1
    return "" if low <= value <= high else f"the constant {value} does not fit {type}"


def _destination_type(
    row: Instruction, place: OperandPlace, modifiers: Mapping[str, str], typed: Mapping[str, AnyOperand], result: DType | None
) -> DType:
    if result is not None and place is row.destinations[0]:
        return result
    for other in row.sources:
        same = other.spec.element == place.spec.element or other.spec.like == place.name
        source = typed.get(other.name)
        if same and not isinstance(source, Address) and (type := _type_of(source)) is not None:
            return type
    return place.spec.allowed(modifiers)[0]
