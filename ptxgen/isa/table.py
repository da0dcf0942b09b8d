"""The instruction table: what a row is and how to find one. The rows themselves live in the family files beside this one.

A row is written with the `instruction` decorator on a function whose body is the row's meaning:

    @instruction("dp4a.{a_type}.{b_type}", d="u32|s32", a="b32", b="b32", c="=d", sm=61, ptx=(5, 0), section="9.7.1.23",
                 a_type=("s32", "u32"), b_type=("s32", "u32"))
    def dp4a(v, a, b, c, a_type, b_type): ...

Template: `{slot}` is a modifier that must be there, `{slot?}` one that may be; the keyword of the same name lists its
values. Every other keyword is an operand, destinations (names that start with `d`) first, and its value its type:

    "u32|s32"     one of these types; a `.b` type takes any register of its size
    "{type}"      the type that the modifier `type` names
    "=d"          the same type as operand d
    "{type}+"     as "{type}", or a wider register of the same kind (ld, st, cvt: PTX ISA 9.4.1)
    "2{type}"     the type twice as wide (mul.wide)
    "{type}*"     one register, or a vector of as many as the modifier `vec` says (v2, v4, v8); "{type}+*" is both
    "b32[4]"      a vector of exactly 4, in braces
    "b32[num]"    a vector of as many as the modifier `num` says (x1, x2, x4), in braces
    "addr"        a memory operand;  "label" a branch target;  "symbol" the name of a variable;  "imm" an integer constant
    a trailing ?  the operand may be missing; `dp` is printed after the first destination as `d|dp`

How a meaning is called: `meaning(v, *sources, **modifiers)`. A source arrives as a `Value` of the type that its spec names (its
register's bits seen as that type; of several types its register's own, else the first), a vector as a tuple of them, `addr` as
an `Address`, `imm` as an int. Absent optional operands and modifiers are not passed. It returns the destination's `Value`, a
tuple for a vector, a tuple of one entry a place where the row has two destinations. The caller fits a value to a wider
register by the sign of the value's type. The meanings of bra, brx.idx, call, ret and exit do nothing: whoever runs a program
moves its program counter by the row's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from ptxgen.errors import UnknownInstruction
from ptxgen.isa.operands import Address, AnyOperand, Immediate, LabelRef, Register, Special, Symbol, Vector, kind
from ptxgen.types import BY_NAME, PRED, DType, Kind

Modifiers = Mapping[str, str]
Need = tuple[int, tuple[int, int]]
"""Least GPU (75 for sm_75) and least PTX version."""


@dataclass(frozen=True)
class Slot:
    """A place in the opcode: a fixed word (`values` of one, no name) or a modifier."""

    name: str
    values: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class Operand:
    """An operand place. `spec` is in the language of this module's docstring, less the trailing `?`."""

    name: str
    spec: str
    optional: bool = False

    @property
    def is_destination(self) -> bool:
        return self.name.startswith("d")


@dataclass(frozen=True)
class Instruction:
    """One row. `meaning(v, *sources, **modifiers)` returns the destination (a tuple for several); `v` is an `Algebra`."""

    name: str
    mnemonic: str
    slots: tuple[Slot, ...]
    operands: tuple[Operand, ...]
    meaning: Callable[..., Any]
    sm: int
    ptx: tuple[int, int]
    section: str
    defaults: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Need] = field(default_factory=dict)
    rule: Callable[[Modifiers], str] | None = None  # what is wrong with these modifiers together; "" if nothing is

    @cached_property
    def destinations(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.is_destination)

    @cached_property
    def sources(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if not o.is_destination)

    @cached_property
    def modifiers(self) -> tuple[Slot, ...]:
        return tuple(s for s in self.slots if s.name)

    @property
    def family(self) -> str:
        """The file beside this one that the row stands in: `floating`, `memory`, ..."""
        return self.meaning.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        return (self.meaning.__doc__ or "").strip()

    def opcode(self, modifiers: Modifiers) -> str:
        """The opcode text for these modifiers, e.g. `add.rn.f32`."""
        words = [self.mnemonic]
        for slot in self.slots:
            if not slot.name:
                words.append(slot.values[0])
            elif slot.name in modifiers:
                words.append(modifiers[slot.name])
        return ".".join(words)

    def match(self, words: tuple[str, ...]) -> dict[str, str] | None:
        """The modifiers that `words` (the opcode after its mnemonic) spell, or None if this row does not spell them."""
        return _match(self.slots, words)

    def spec_types(self, operand: Operand, modifiers: Modifiers) -> tuple[DType, ...]:
        """The types the operand may have under these modifiers; empty where the spec names none or another operand (`=d`)."""
        spec = _scalar(operand.spec)
        if spec in ("addr", "label", "symbol", "imm") or spec.startswith("="):
            return ()
        if spec.startswith("2{"):
            narrow = BY_NAME[modifiers[spec[2:-1]]]
            return (BY_NAME[f"{narrow.name[0]}{2 * narrow.bits}"],)
        if spec.startswith("{"):
            name = modifiers.get(spec[1:-1])
            return (BY_NAME[name],) if name in BY_NAME else ()
        return tuple(BY_NAME[name] for name in spec.split("|"))

    def vector_length(self, operand: Operand, modifiers: Modifiers) -> int:
        """How many registers stand in the operand place: 1 for a plain one, n for {..n..}."""
        fixed = re.search(r"\[(\w+)\]$", operand.spec) if operand.spec.endswith("]") else None
        if fixed:
            return int(fixed[1] if fixed[1].isdigit() else modifiers[fixed[1]][1:])
        if operand.spec.endswith("*") and "vec" in modifiers:
            return int(modifiers["vec"][1:])
        return 1

    def is_vector(self, operand: Operand, modifiers: Modifiers) -> bool:
        """Whether the operand is written in braces, which a vector of one may be."""
        return "[" in operand.spec or self.vector_length(operand, modifiers) > 1

    def need(self, modifiers: Modifiers) -> Need:
        """The least GPU and PTX version for these modifiers; `needs` keys are `slot` or `slot=value`."""
        sm, ptx = self.sm, self.ptx
        if not self.needs:
            return sm, ptx
        for key, (more_sm, more_ptx) in self.needs.items():
            slot, _, value = key.partition("=")
            if slot in modifiers and (not value or modifiers[slot] == value):
                sm, ptx = max(sm, more_sm), max(ptx, more_ptx)
        return sm, ptx

    def problems(self, modifiers: Modifiers, operands: Mapping[str, AnyOperand], *, strict: bool = False) -> list[str]:
        """What is wrong with these operands, in words; empty if nothing is. PTX's own rules (PTX ISA 9.4), or with `strict`
        the DSL's: an integer operand has exactly the type that the instruction names."""
        form = (strict, *modifiers.items(), *((name, kind(operand)) for name, operand in operands.items()))
        if form in self._accepted:
            return []
        found = [text] if self.rule and (text := self.rule(modifiers)) else []
        for place in self.operands:
            operand = operands.get(place.name)
            if operand is None:
                if not place.optional:
                    found.append(f"operand {place.name} is missing")
                continue
            found += self._operand_problems(place, operand, modifiers, operands, strict)
        found += [f"has no operand {name}" for name in operands if name not in {o.name for o in self.operands}]
        if not found:
            self._accepted.add(form)
        return found

    @cached_property
    def _accepted(self) -> set[tuple[object, ...]]:
        """The modifiers and kinds of operands in which `problems` found none: a kernel has few forms and many instructions."""
        return set()

    def _operand_problems(
        self, place: Operand, operand: AnyOperand, modifiers: Modifiers, operands: Mapping[str, AnyOperand], strict: bool
    ) -> list[str]:
        if place.spec in _KINDS:
            good = isinstance(operand, _KINDS[place.spec])
            return [] if good else [f"operand {place.name} must be a {place.spec}, got {operand}"]
        length = self.vector_length(place, modifiers)
        braces = self.is_vector(place, modifiers)
        if isinstance(operand, Vector) != braces:
            return [f"operand {place.name} must be {f'a vector of {length}' if braces else 'one register'}, got {operand}"]
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(elements) != length:
            return [f"operand {place.name} must have {length} elements, got {len(elements)}"]
        if place.spec.startswith("="):
            like = operands.get(place.spec[1:])
            allowed: tuple[DType, ...] = (like.type,) if isinstance(like, Register | Immediate) else ()
        else:
            allowed = self.spec_types(place, modifiers)
        found = []
        for element in elements:
            if isinstance(element, Register) and any(element.type is want for want in allowed):
                continue
            if place.is_destination and not isinstance(element, Register | None):
                found.append(f"destination {place.name} must be a register, got {element}")
            elif isinstance(element, Register | Special) and allowed:
                if not any(_fits(element.type, want, wider="+" in place.spec, strict=strict) for want in allowed):
                    names = " or ".join(t.name for t in allowed)
                    found.append(f"operand {place.name} must be {names}, got {element.type}")
            elif isinstance(element, Address | LabelRef):
                found.append(f"operand {place.name} must be a register or a constant, got {element}")
        return found


_KINDS = {"addr": Address, "label": LabelRef, "symbol": Symbol, "imm": Immediate}


@cache
def _scalar(spec: str) -> str:
    """The spec of one element."""
    return re.sub(r"\[\w+\]$", "", spec.rstrip("+*"))


def _fits(got: DType, want: DType, *, wider: bool, strict: bool) -> bool:
    if (got == PRED) != (want == PRED):
        return False
    bits = got.bits if got.bits >= 16 or not want.bits < 16 else 16
    size = bits >= want.bits if wider or want.bits < 16 else bits == want.bits
    if not size:
        return False
    if want.kind is Kind.BITS or (got.kind is Kind.BITS and not strict):
        return True
    if strict and not wider:
        return got == want
    return got.is_float == want.is_float if not (got.kind is Kind.BITS and want.register.startswith("b")) else True


def _match(slots: tuple[Slot, ...], words: tuple[str, ...]) -> dict[str, str] | None:
    if not slots:
        return {} if not words else None
    slot, rest = slots[0], slots[1:]
    for value in slot.values:  # a value may be of several words (`xorsign.abs`)
        length = value.count(".") + 1
        if words[:length] == tuple(value.split(".")):
            found = _match(rest, words[length:])
            if found is not None:
                return {slot.name: value, **found} if slot.name else found
    return _match(rest, words) if slot.optional else None


_rows: list[Instruction] = []


def instruction(
    template: str,
    *,
    sm: int = 75,
    ptx: tuple[int, int] = (6, 3),
    section: str,
    name: str = "",
    defaults: Mapping[str, str] | None = None,
    needs: Mapping[str, Need] | None = None,
    rule: Callable[[Modifiers], str] | None = None,
    **places: str | tuple[str, ...],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a row to the table. `places` are the modifiers (tuples) and operands (strings) in the order of the text; `name` is
    the builder's name for the row (by default the function's): several rows may share it, told apart by operand types.
    `defaults` are modifiers that the builder writes when the author says nothing (`rnd="rn"`: decision 5 of the design); `rule`
    says which modifiers do not go together."""
    slots = []
    mnemonic, *words = template.split(".")
    for word in words:
        if word.startswith("{"):
            slot, optional = word.strip("{}?"), word.endswith("?}")
            values = places[slot]
            if isinstance(values, str):
                raise ValueError(f"{template}: the values of {slot} must be a tuple")
            slots.append(Slot(slot, values, optional))
        else:
            slots.append(Slot("", (word,)))
    operands = tuple(
        Operand(place, spec.removesuffix("?"), spec.endswith("?")) for place, spec in places.items() if isinstance(spec, str)
    )

    def add(meaning: Callable[..., Any]) -> Callable[..., Any]:
        row = Instruction(
            name or meaning.__name__.rstrip("_"), mnemonic, tuple(slots), operands, meaning, sm, ptx, section,
            dict(defaults or {}), dict(needs or {}), rule,
        )  # fmt: skip
        _rows.append(row)
        return meaning

    return add


def rows() -> tuple[Instruction, ...]:
    """Every row of the table, in the order of the family files."""
    _load()
    return tuple(_rows)


def named(name: str) -> tuple[Instruction, ...]:
    """The rows the builder knows by this name; UnknownInstruction (with near names) if there are none."""
    _load()
    found = _by("name").get(name, ())
    if not found:
        import difflib

        near = difflib.get_close_matches(name, _by("name"), n=3)
        raise UnknownInstruction(f"no instruction is called {name!r}", hint=f"did you mean {', '.join(near)}?" if near else "")
    return found


def decode(opcode: str) -> Iterator[tuple[Instruction, dict[str, str]]]:
    """Every row, with its modifiers, that spells this opcode text. Usually one; rows that differ in operands only share it."""
    _load()
    mnemonic, *words = opcode.split(".")
    for row in _by("mnemonic").get(mnemonic, ()):
        modifiers = row.match(tuple(words))
        if modifiers is not None:
            yield row, modifiers


_indexes: dict[str, dict[str, tuple[Instruction, ...]]] = {}


def _by(key: str) -> dict[str, tuple[Instruction, ...]]:
    if key not in _indexes:
        index: dict[str, tuple[Instruction, ...]] = {}
        for row in _rows:
            index[getattr(row, key)] = (*index.get(getattr(row, key), ()), row)
        _indexes[key] = index
    return _indexes[key]


def _load() -> None:
    """Import the family files once. Late, because each of them imports this module for its decorator."""
    if not _indexes:
        from ptxgen.isa.rows import families  # noqa: F401

        _by("name")
