"""What may stand in an operand place of a row, and the short language in which a row says it.

"u32|s32"     a register or constant of one of these types; a `.b` type takes any register of its size
"{type}"      of the type that the modifier `type` names
"=d"          of the type of operand d
"{type}+"     as "{type}", or a wider register of the same kind (ld, st, cvt: PTX ISA 9.4.1)
"2{type}"     of the type twice as wide (mul.wide)
"{type}*"     one register, or a vector of as many as the modifier `vec` says (v2, v4, v8); "{type}+*" is both
"b32:u32"     as "b32", whose bits are an integer: so says the DSL, where PTX takes any register of the size
"b32:{type}"  as "b32", whose bits are elements of the type that the modifier `type` names: two f16 or bf16, a tf32, bytes
"b32[4]"      a vector of exactly 4, in braces; "b32:{type}[4]" is both
"b32[num]"    a vector of as many as the modifier `num` says (x1, x2, x4), in braces
"f32[shape]"  a vector of a thread's share of the m x n results of a warpgroup's product (shape: m64n16k16), in braces
"addr"        a memory operand, in the space that the modifier `space` names; "global addr" in this one
"label" a branch target;  "symbol" the name of a variable;  "imm" an integer constant
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

from ptxgen.target import WARPGROUP_SIZE
from ptxgen.types import BF16X2, BY_NAME, F16X2, TF32, DType


class OperandKind(Enum):
    """What sort of operand a place takes; the value is how a message calls it."""

    VALUE = "a register or a constant"
    ADDRESS = "an address"
    LABEL = "a label"
    SYMBOL = "a name"
    CONSTANT = "a constant"


_KINDS = {
    "addr": OperandKind.ADDRESS,
    "label": OperandKind.LABEL,
    "symbol": OperandKind.SYMBOL,
    "imm": OperandKind.CONSTANT,
}
_PACKED = {"f16": F16X2, "bf16": BF16X2, "tf32": TF32}
"""The registers of 32 bits that hold elements of a type; bytes have no type of their own and are in integers."""
_SHAPE = re.compile(r"m(?P<m>\d+)n(?P<n>\d+)k\d+")
_VALUE = re.compile(
    r"=(?P<like>\w+)|(?P<twice>2)?\{(?P<modifier>\w+)\}(?P<wider>\+)?(?P<vec>\*)?|(?P<types>[\w|]+)"
    r"(:(?P<holds>\w+|\{\w+\}))?(\[(?P<braces>\w+)\])?"
)


@dataclass(frozen=True)
class OperandSpec:
    """What a place takes and, of a value, its type: one of `types`, the one that `modifier` names (`twice` as wide), or the
    one of the operand `like`; `wider` registers may do. `vec`: a vector where the modifier of this name is there. `braces`: a
    vector of so many, or of as many as this modifier says. `space`: the state space of an address that no modifier names.
    `holds`: the type that the bits of a `.b` type stand for, or in braces the modifier that names it."""

    kind: OperandKind = OperandKind.VALUE
    types: tuple[DType, ...] = ()
    modifier: str = ""
    twice: bool = False
    like: str = ""
    wider: bool = False
    vec: bool = False
    braces: int | str = 0
    space: str = ""
    holds: str = ""

    @property
    def element(self) -> OperandSpec:
        """The type alone: two places with the same one hold values of one type."""
        return replace(self, wider=False, vec=False)

    @property
    def names_type(self) -> bool:
        """Whether a modifier names the type as it is, so that the operand's type can settle the modifier."""
        return bool(self.modifier) and not self.twice

    @property
    def holds_modifier(self) -> str:
        """The modifier that names what the bits stand for; empty if none does."""
        return self.holds.strip("{}") if self.holds.startswith("{") else ""

    def held(self, modifiers: Mapping[str, str]) -> tuple[DType, ...]:
        """The types of registers that hold what the bits stand for, beside plain bits; empty where the spec does not say."""
        name = modifiers.get(self.holds_modifier, "") if self.holds_modifier else self.holds
        if not name:
            return ()
        bits = self.types[0].bits
        return (_PACKED[name],) if name in _PACKED else (BY_NAME[f"u{bits}"], BY_NAME[f"s{bits}"])

    def allowed(self, modifiers: Mapping[str, str]) -> tuple[DType, ...]:
        """The types under these modifiers; empty where the spec names none or another operand."""
        if not self.modifier:
            return self.types
        type = BY_NAME.get(modifiers.get(self.modifier, ""))
        return () if type is None else (wide(type) if self.twice else type,)

    def length(self, modifiers: Mapping[str, str]) -> int:
        """How many registers stand in the place: 1 for a plain one, n for {..n..}."""
        if isinstance(self.braces, int):
            return self.braces or int(modifiers.get("vec", "v1")[1:] if self.vec else 1)
        word = modifiers[self.braces]
        shape = _SHAPE.fullmatch(word)
        return int(shape["m"]) * int(shape["n"]) // WARPGROUP_SIZE if shape else int(word[1:])

    def in_braces(self, modifiers: Mapping[str, str]) -> bool:
        """Whether the operand is written in braces, which a vector of one may be."""
        return bool(self.braces) or self.length(modifiers) > 1

    def state_space(self, modifiers: Mapping[str, str]) -> str:
        """The state space of an address here."""
        return self.space or state_space(modifiers.get("space", ""))


@cache
def parsed(text: str) -> OperandSpec:
    """The spec that this text spells, in the language above. ValueError if it is none."""
    space, _, kind = text.rpartition(" ")
    if kind in _KINDS and (not space or (kind == "addr" and space in ("global", "shared"))):
        return OperandSpec(_KINDS[kind], space=space)
    match = _VALUE.fullmatch(text)
    types = (match["types"] or "").split("|") if match else []
    if match is None or not BY_NAME.keys() >= {name for name in types if name}:
        raise ValueError(f"{text!r} is not an operand spec; see {__name__}")
    braces = match["braces"] or "0"
    return OperandSpec(
        types=tuple(BY_NAME[name] for name in types if name),
        modifier=match["modifier"] or "",
        twice=bool(match["twice"]),
        like=match["like"] or "",
        wider=bool(match["wider"]),
        vec=bool(match["vec"]),
        braces=int(braces) if braces.isdigit() else braces,
        holds=match["holds"] or "",
    )


def element_of(type: DType) -> str:
    """The name of the elements that a register of this type holds where its place takes plain bits; empty if none."""
    return next((name for name, packed in _PACKED.items() if packed == type), "")


def state_space(word: str) -> str:
    """The state space of a `.ss` modifier: `shared` of `shared::cta`, `generic` of none."""
    return word.partition("::")[0] or "generic"


def wide(type: DType) -> DType:
    """The integer type of twice the width."""
    return BY_NAME[f"{type.name[0]}{2 * type.bits}"]
