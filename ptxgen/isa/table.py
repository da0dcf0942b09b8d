"""What a row of the instruction table is, and how one is written. The rows stand in the family files of rows/; instructions.py
gathers them and finds one.

A row is written with the `instruction` decorator on a function whose body is the row's meaning:

    @instruction("dp4a.{a_type}.{b_type}", sm=61, ptx=(5, 0), section="9.7.1.23", effect=Effect.NONE, unit=Unit.DOT)
    @modifiers(a_type=("s32", "u32"), b_type=("s32", "u32"))
    @operands(d="u32|s32", a="b32", b="b32", c="=d")
    def dp4a(v, a, b, c, a_type, b_type): ...

Template: `{slot}` is a modifier that must be there, `{slot?}` one that may be; the keyword of the same name lists its
values. Every other keyword is an operand, destinations (names that start with `d`) first, and its value says what may stand
there, in the language of operand_spec.py; a trailing `?` lets it be missing. `dp` is printed after the first destination as
`d|dp`, and a lane mask is called `mask`. Modifiers and operands may stand in decorators of their own below the row's. What is
the same for a family's rows, it sets once (`partial`).

How a meaning is called: `meaning(v, *sources, **modifiers)`. A source arrives as a `Number` of the type that its spec names
(its register's bits seen as that type; of several types its register's own, else the first), a vector as a tuple of them,
`addr` as an `Address`, `imm` as an int. Absent optional operands and modifiers are not passed. It returns the destination's
`Number`, a tuple for a vector, a tuple of one entry a place where the row has two destinations; what a row `updates` counts as
one. The caller fits a value to a wider register by the sign of the value's type. The meanings of rows that branch, call or
return do nothing: whoever runs a program moves its program counter by the row's effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ptxgen.isa.effects import ADDRESSING, BRANCHES, SCOPES, WEAK, Effect, LaneResult, Ordering
from ptxgen.isa.opcode import OpcodeSlot, match, slots_of, taken_places
from ptxgen.isa.operand_spec import OperandKind, OperandSpec, parsed
from ptxgen.isa.operands import Address, AnyOperand, Immediate, LabelRef, Register, Special, Symbol, Vector, kind
from ptxgen.isa.units import Unit
from ptxgen.types import ALL, PRED, DType, Kind

Modifiers = Mapping[str, str]
Need = tuple[int, tuple[int, int]]
"""Least GPU (75 for sm_75) and least PTX version."""


@dataclass(frozen=True)
class OperandPlace:
    """An operand place."""

    name: str
    spec: OperandSpec
    optional: bool = False

    @property
    def is_destination(self) -> bool:
        """Whether the instruction writes it."""
        return self.name.startswith("d")

    def is_whole(self, modifiers: Mapping[str, str]) -> bool:
        """Whether floats may not stand there, neither their registers nor constants, although a `.b` type takes them."""
        held = () if self.spec.braces else self.spec.held(modifiers)
        return self.spec.kind is OperandKind.CONSTANT or (bool(held) and held[0].is_integer)


@dataclass(frozen=True)
class Instruction:
    """One row. `meaning(v, *sources, **modifiers)` returns the destination (a tuple for several); `v` is an `Algebra`."""

    name: str
    mnemonic: str
    slots: tuple[OpcodeSlot, ...]
    operands: tuple[OperandPlace, ...]
    meaning: Callable[..., Any]
    sm: int
    ptx: tuple[int, int]
    section: str
    effect: Effect
    unit: Unit | Callable[[Modifiers], Unit]  # where it depends on the modifiers, a function of them
    lanes: LaneResult = LaneResult.OWN
    reads_carry: bool = False
    writes_carry: bool = False
    canonical_nan: bool = False  # gives the canonical NaN and no other, so which NaN it was made from cannot be told
    defaults: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Need] = field(default_factory=dict)
    rule: Callable[[Modifiers], str] | None = None  # what is wrong with these modifiers together; "" if nothing is
    feature: str = ""  # "a": only sm_{sm}a has it, and no newer GPU
    updates: str = ""  # the source that it writes as well, in place
    specials: bool = False  # its source may be a special register
    symbols: Callable[[Modifiers], bool] | None = None  # whether its source may be the address of a variable
    bounds: Mapping[str, Collection[int]] = field(default_factory=dict)  # of the constants in these places

    @cached_property
    def destinations(self) -> tuple[OperandPlace, ...]:
        """The operand places that it writes."""
        return tuple(o for o in self.operands if o.is_destination)

    @cached_property
    def sources(self) -> tuple[OperandPlace, ...]:
        """The operand places that it reads."""
        return tuple(o for o in self.operands if not o.is_destination)

    @cached_property
    def results(self) -> tuple[OperandPlace, ...]:
        """The operand places that hold something else afterwards: its destinations, and the source that it updates."""
        return tuple(o for o in self.operands if o.is_destination or o.name == self.updates)

    @cached_property
    def modifiers(self) -> tuple[OpcodeSlot, ...]:
        """The slots of the opcode that have a choice."""
        return tuple(s for s in self.slots if s.name)

    @cached_property
    def collective(self) -> bool:
        """Whether the lanes of the operand `mask` execute it together, or all 32 where there is no mask (`.sync`)."""
        return self.effect is not Effect.BLOCK_BARRIER and OpcodeSlot("", ("sync",)) in self.slots

    @property
    def by_warpgroup(self) -> bool:
        """Whether the four warps of a warpgroup execute it together: those that sm_90a alone has."""
        return self.collective and bool(self.feature)

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
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

    def text(self, modifiers: Modifiers, operands: Mapping[str, AnyOperand]) -> str:
        """The instruction as PTX, e.g. `add.rn.f32 %f2, %f0, %f1;`."""
        written: list[str] = []
        for place in self.operands:
            operand = operands.get(place.name)
            if operand is None:
                continue
            if place.name == "dp":
                written[-1] += f"|{operand}"
            else:
                written.append(str(operand))
        return f"{self.opcode(modifiers)} {', '.join(written)}".rstrip() + ";"

    def match(self, words: tuple[str, ...]) -> dict[str, str] | None:
        """The modifiers that `words` (the opcode after its mnemonic) spell, or None if this row does not spell them."""
        return match(self.slots, words)

    def unit_of(self, modifiers: Modifiers) -> Unit:
        """The unit that this form of the instruction runs on."""
        return self.unit if isinstance(self.unit, Unit) else self.unit(modifiers)

    def ordering(self, modifiers: Modifiers) -> Ordering:
        """What this form promises other threads. An atomic is relaxed and for the device unless it says otherwise; what is
        volatile is as relaxed for the system (PTX ISA 8.4.2)."""
        if self.effect is Effect.FENCE:
            return Ordering(SCOPES[modifiers.get("scope") or modifiers["level"]], fence=True)
        order = modifiers.get("order", "relaxed" if self.effect is Effect.ATOMIC else "weak")
        if order == "weak":
            return WEAK
        return Ordering(
            SCOPES[modifiers.get("scope", "sys" if order == "volatile" else "gpu")],
            volatile=order == "volatile",
            acquires=order in ("acquire", "acq_rel"),
            releases=order in ("release", "acq_rel"),
        )

    def waits_for_grids(self, modifiers: Modifiers) -> bool:
        """Whether it waits until the grids before this one have ended and their writes are seen."""
        return self.effect is Effect.GRID_CONTROL and modifiers["action"] == "wait"

    def lets_next_grid_start(self, modifiers: Modifiers) -> bool:
        """Whether the grid after this one may start when all blocks have executed it or ended."""
        return self.effect is Effect.GRID_CONTROL and modifiers["action"] == "launch_dependents"

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
        problems = [text] if self.rule and (text := self.rule(modifiers)) else []
        for place in self.operands:
            operand = operands.get(place.name)
            if operand is None:
                if not place.optional:
                    problems.append(f"operand {place.name} is missing")
                continue
            problems += self._operand_problems(place, operand, modifiers, operands, strict)
        problems += [f"has no operand {name}" for name in operands if name not in {o.name for o in self.operands}]
        if not problems:
            self._accepted.add(form)
        return problems

    @cached_property
    def _accepted(self) -> set[tuple[object, ...]]:
        """The modifiers and kinds of operands in which `problems` found none: a kernel has few forms and many instructions."""
        return set()

    def _operand_problems(
        self, place: OperandPlace, operand: AnyOperand, modifiers: Modifiers, operands: Mapping[str, AnyOperand], strict: bool
    ) -> list[str]:
        spec = place.spec
        if spec.kind is not OperandKind.VALUE:
            if not isinstance(operand, _CLASSES[spec.kind]):
                return [f"operand {place.name} must be {spec.kind.value}, got {operand}"]
            base = operand.base if isinstance(operand, Address) else None
            if isinstance(base, Register) and (base.type.is_float or base.type == PRED):
                return [f"operand {place.name} must be an address in an integer register, got {base}, which is {base.type}"]
            return []
        length, braces = spec.length(modifiers), spec.in_braces(modifiers)
        if isinstance(operand, Vector) != braces:
            return [f"operand {place.name} must be {f'a vector of {length}' if braces else 'one register'}, got {operand}"]
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(elements) != length:
            return [f"operand {place.name} must have {length} elements, got {len(elements)}"]
        like = operands.get(spec.like)
        allowed = (like.type,) if isinstance(like, Register | Immediate) else spec.allowed(modifiers)
        held = spec.held(modifiers) if strict else ()
        problems = []
        for element in elements:
            if isinstance(element, Register) and any(element.type is want for want in allowed):
                continue
            if place.is_destination and not isinstance(element, Register | None):
                problems.append(f"destination {place.name} must be a register, got {element}")
            elif isinstance(element, Special) and not self.specials:
                problems.append(f"operand {place.name} cannot be the special register {element}: move it to a register first")
            elif isinstance(element, Symbol) and not (self.symbols and self.symbols(modifiers)):
                problems.append(f"operand {place.name} cannot be {element}: move its address to a register first")
            elif isinstance(element, Register | Special) and held:
                if element.type not in held:
                    names = " or ".join(str(type) for type in (*held, *allowed))
                    problems.append(
                        f"operand {place.name} holds {_held_name(spec, modifiers)}, so it must be {names}, got {element.type}"
                    )
            elif isinstance(element, Register | Special) and allowed:
                halved = isinstance(element, Special) and element.type.bits == 32  # mov.u16 reads its low half
                if not any(
                    _fits(element.type, want, wider=spec.wider or (halved and want.bits == 16), strict=strict)
                    for want in allowed
                ):
                    names = " or ".join(t.name for t in allowed)
                    problems.append(f"operand {place.name} must be {names}, got {element.type}")
                elif element.type.is_float and place.is_whole(modifiers):
                    problems.append(f"operand {place.name} must be an integer, got {element.type}")
            elif isinstance(element, Address | LabelRef):
                problems.append(f"operand {place.name} must be a register or a constant, got {element}")
        return list(dict.fromkeys(problems))


_BITS = frozenset(type.name for type in ALL if type.kind is Kind.BITS)
_CLASSES = {
    OperandKind.ADDRESS: Address,
    OperandKind.LABEL: LabelRef,
    OperandKind.SYMBOL: Symbol,
    OperandKind.CONSTANT: Immediate,
}


def _held_name(spec: OperandSpec, modifiers: Modifiers) -> str:
    return modifiers[spec.holds_modifier] if spec.holds_modifier else "an integer"


def _fits(got: DType, want: DType, *, wider: bool, strict: bool) -> bool:
    if (got == PRED) != (want == PRED):
        return False
    bits = got.bits if got.bits >= 16 or not want.bits < 16 else 16
    size = bits >= want.bits if wider or want.bits < 16 else bits == want.bits
    if not size or (got.is_float and want.is_float and got.bits != want.bits):
        return False
    if strict and wider:
        return got == want or _holds_wider(got, want)
    if want.kind is Kind.BITS or (got.kind is Kind.BITS and not strict):
        return True
    if strict:
        return got == want
    return got.is_float == want.is_float if not (got.kind is Kind.BITS and want.register.startswith("b")) else True


def _holds_wider(got: DType, want: DType) -> bool:
    """Whether a register of another type has room for a value: bits take any of their size, and wider ones hold integers."""
    if want.kind is Kind.BITS:
        return got.bits == want.bits or not got.is_float
    return not (got.is_float or want.is_float) and (got.bits > want.bits or got.kind is Kind.BITS)


REGISTERED: list[Instruction] = []
"""The rows whose family files were imported; instructions.py imports them all."""


def instruction(
    template: str,
    *,
    effect: Effect,
    unit: Unit | Callable[[Modifiers], Unit],
    lanes: LaneResult = LaneResult.OWN,
    reads_carry: bool = False,
    writes_carry: bool = False,
    canonical_nan: bool = False,
    feature: str = "",
    updates: str = "",
    specials: bool = False,
    symbols: Callable[[Modifiers], bool] | None = None,
    bounds: Mapping[str, Collection[int]] | None = None,
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
    says which modifiers do not go together; `updates` names the source that holds the result afterwards; with `specials` a
    source may be a special register, and where `symbols` says so the address of a variable; `bounds` are the values that
    constants may have, none of them where only a register may stand. ValueError for a row
    whose attributes do not suit its text."""

    def add(meaning: Callable[..., Any]) -> Callable[..., Any]:
        all_places: dict[str, str | tuple[str, ...]] = places | taken_places(meaning)
        mnemonic, slots = slots_of(template, all_places)
        operands = tuple(
            OperandPlace(place, parsed(spec.removesuffix("?")), spec.endswith("?"))
            for place, spec in all_places.items()
            if isinstance(spec, str)
        )
        row = Instruction(
            name or meaning.__name__.rstrip("_"),
            mnemonic,
            slots,
            operands,
            meaning,
            sm,
            ptx,
            section,
            effect,
            unit,
            lanes,
            reads_carry,
            writes_carry,
            canonical_nan,
            dict(defaults or {}),
            dict(needs or {}),
            rule,
            feature,
            updates,
            specials,
            symbols,
            dict(bounds or {}),
        )
        _check(row, template)
        REGISTERED.append(row)
        return meaning

    return add


def _check(row: Instruction, template: str) -> None:
    """ValueError for a row that the analyses would misjudge: its operands show an effect that it does not name."""
    kinds = {place.spec.kind for place in row.operands}
    if OperandKind.ADDRESS in kinds and row.effect not in ADDRESSING:
        raise ValueError(f"{template}: an instruction with an address does something to memory; say what (effect=)")
    if (OperandKind.LABEL in kinds) != (row.effect in BRANCHES):
        raise ValueError(f"{template}: an instruction with a label is a branch, and only one with a label (effect=)")
    words = {slot.values[0] for slot in row.slots if not slot.name}
    for place in row.operands:
        spec = place.spec
        if any(type.kind is Kind.BITS for type in spec.types) and not spec.holds and not words & _BITS:
            raise ValueError(
                f"{template}: no word of the text says what the bits of {place.name} are; say what they hold (b32:u32)"
            )
    if row.updates and row.updates not in {place.name for place in row.sources}:
        raise ValueError(f"{template}: it has no source {row.updates} to update")
    if row.collective and row.results and row.lanes is LaneResult.OWN:
        raise ValueError(f"{template}: lanes execute it together; say what each of them gets (lanes=)")
    if not row.collective and "mask" in {place.name for place in row.operands}:
        raise ValueError(f"{template}: the lanes of a mask execute an instruction together (.sync)")
