"""PTX types: what a register, a parameter or a memory cell can hold. Nothing here knows about instructions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What the bits of a type stand for."""

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    FLOAT = "float"
    BITS = "bits"
    PREDICATE = "predicate"


@dataclass(frozen=True)
class DType:
    """A PTX type. `register` is the type its register is declared with: bf16 and the packed pairs live in `.b` registers
    because PTX has no register class of their own (PTX ISA 5.2.1, 5.2.3)."""

    name: str
    bits: int
    kind: Kind
    register: str
    lanes: int = 1  # 2 for the packed pairs

    @property
    def bytes(self) -> int:
        """Size in memory, in bytes (a predicate has none)."""
        return self.bits // 8

    @property
    def is_integer(self) -> bool:
        """Whether it is signed or unsigned; `.b` types are neither."""
        return self.kind in (Kind.UNSIGNED, Kind.SIGNED)

    @property
    def is_float(self) -> bool:
        """Whether it is floating-point, packed pairs included."""
        return self.kind is Kind.FLOAT

    @property
    def is_signed(self) -> bool:
        """Whether it is a signed integer."""
        return self.kind is Kind.SIGNED

    def __hash__(self) -> int:
        return hash(self.name)  # the generated one hashes five fields, and types are in every key of the builder's caches

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


def _integers(kind: Kind, letter: str) -> tuple[DType, ...]:
    return tuple(DType(f"{letter}{bits}", bits, kind, f"{letter}{max(bits, 16)}") for bits in (8, 16, 32, 64))


U8, U16, U32, U64 = _integers(Kind.UNSIGNED, "u")
S8, S16, S32, S64 = _integers(Kind.SIGNED, "s")
B8, B16, B32, B64 = _integers(Kind.BITS, "b")
B128 = DType("b128", 128, Kind.BITS, "b128")
F16 = DType("f16", 16, Kind.FLOAT, "f16")
F32 = DType("f32", 32, Kind.FLOAT, "f32")
F64 = DType("f64", 64, Kind.FLOAT, "f64")
BF16 = DType("bf16", 16, Kind.FLOAT, "b16")
TF32 = DType("tf32", 32, Kind.FLOAT, "b32")
F16X2 = DType("f16x2", 32, Kind.FLOAT, "b32", lanes=2)
BF16X2 = DType("bf16x2", 32, Kind.FLOAT, "b32", lanes=2)
PRED = DType("pred", 1, Kind.PREDICATE, "pred")

ALL = (U8, U16, U32, U64, S8, S16, S32, S64, B8, B16, B32, B64, B128, F16, F32, F64, BF16, TF32, F16X2, BF16X2, PRED)
BY_NAME = {t.name: t for t in ALL}
