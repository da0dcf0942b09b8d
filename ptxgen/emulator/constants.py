"""Constants of PTX text and the expressions of them (PTX ISA 4.5): what they are worth, and as which types they may stand."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import isnan

from ptxgen.emulator.lexer import Reader, float_of_bits
from ptxgen.isa.operands import Immediate
from ptxgen.target import WARP_SIZE
from ptxgen.types import B32, B64, F32, F64, PRED, DType

_BITS = 64
_DEEPEST = 50  # parentheses, signs and conditions within each other


class ConstantKind(Enum):
    """What a constant is; the value is how a message calls it."""

    INTEGER = "an integer constant"
    DOUBLE = "a double constant"
    SINGLE = "a single-precision constant"


_TAKEN = {
    ConstantKind.INTEGER: "an integer or .b type or pred",
    ConstantKind.DOUBLE: "f32, f64 or b64",
    ConstantKind.SINGLE: "f32, f64 or b32",
}


@dataclass(frozen=True)
class Constant:
    """A constant. `value`: an integer of 64 bits, signed unless `unsigned`; a double; or the bits of a single (0f3F800000)."""

    kind: ConstantKind
    value: int | float
    unsigned: bool = False

    def __str__(self) -> str:
        return f"0f{self.value:08X}" if self.kind is ConstantKind.SINGLE else str(self.value)

    def fits(self, type: DType) -> bool:
        """Whether it may be an operand of this type, as NVIDIA's assembler has it. One that is too large loses its high bits;
        halves and packed pairs have no constants."""
        if self.kind is ConstantKind.INTEGER:
            return not type.is_float
        return type in (F32, F64) or type == (B64 if self.kind is ConstantKind.DOUBLE else B32)

    def initialises(self, type: DType) -> bool:
        """Whether it may be the initial value of a variable of this type: as `fits`, but b32 and b64 take every float."""
        return self.fits(type) or (self.kind is not ConstantKind.INTEGER and type in (B32, B64))

    def fault(self, type: DType) -> str:
        """Why it cannot be of this type."""
        return f"{self.kind.value} can be of {_TAKEN[self.kind]}, not of {type}"

    def operand(self, type: DType) -> Immediate:
        """It as an operand of a type that it fits; a NaN as bits, because a float of Python does not keep them."""
        bits = self.bits(type)
        if type in (F32, F64):
            value = float_of_bits(type.name, bits)
            return Immediate(bits, B32 if type == F32 else B64) if isnan(value) else Immediate(value, type)
        negative = type.is_signed and bits >> type.bits - 1
        return Immediate(bits - (1 << type.bits) if negative else bits, type)

    def bits(self, type: DType) -> int:
        """Its bits as this type. A single is not converted to a double but stands in its low half, as the assembler has it."""
        if type == PRED:
            return int(self.value != 0)
        value = self.value
        if self.kind is ConstantKind.DOUBLE:
            value = double_bits(value) if type.bits == 64 else single_bits(value)
        return int(value) & ((1 << type.bits) - 1)


def double_bits(value: float) -> int:
    """The bits of a float64."""
    return int.from_bytes(struct.pack("<d", value), "little")


def single_bits(value: float) -> int:
    """The bits of the float32 that is nearest."""
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def integer(value: int, unsigned: bool = False) -> Constant:
    """An integer constant: the low 64 bits of a value."""
    value &= (1 << _BITS) - 1
    return Constant(ConstantKind.INTEGER, value if unsigned or not value >> _BITS - 1 else value - (1 << _BITS), unsigned)


class ConstantReader(Reader):
    """Reads constant expressions. Precedence, types and conversions are those of C with integers of 64 bits (PTX ISA 4.5.5 and
    4.5.6) but where NVIDIA's assembler has others: `~` and `%` are unsigned, and `?:` has the type of what it chooses."""

    _depth = 0

    @property
    def at_constant(self) -> bool:
        """Whether the next token begins a constant expression."""
        token = self.token
        return token.kind == "number" or token.text in ("-", "+", "~", "(", "WARP_SZ", "!")

    def constant(self) -> Constant:
        """Read a constant expression."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.fail(f"a constant expression is nested more than {_DEEPEST} deep")
        value = self._binary(0)
        if self.accept("?"):
            first = self.constant()
            self.expect(":")
            second = self.constant()
            self._check_integers("?:", value, first, second)
            value = first if value.value else second  # with its own type, unlike in C
        self._depth -= 1
        return value

    def integer_constant(self) -> int:
        """Read a constant expression that must be an integer."""
        value = self.constant()
        if value.kind is not ConstantKind.INTEGER:
            raise self.fail(f"expected an integer, got {value}")
        return int(value.value)

    def _binary(self, least: int) -> Constant:
        """Read operands joined by operators of at least this precedence."""
        left = self._unary()
        while self.token.kind in ("mark", "word") and _PRECEDENCE.get(self.token.text, -1) >= least:
            sign = self.take().text
            left = self._joined(sign, left, self._binary(_PRECEDENCE[sign] + 1))
        return left

    def _unary(self) -> Constant:
        signs: list[str] = []
        while sign := self._sign():
            signs.append(sign)
        value = self._primary()
        for sign in reversed(signs):
            value = self._signed(sign, value)
        return value

    def _sign(self) -> str:
        """Read a sign or a cast, `(.s64)` or `(.u64)`; "" where there is none."""
        if self.token.text in ("+", "-", "~", "!") and self.token.kind == "mark":
            return self.take().text
        if self.token.text != "(" or self.following.text not in (".s64", ".u64"):
            return ""
        self.expect("(")
        kind = self.take("word").text
        self.expect(")")
        return kind

    def _primary(self) -> Constant:
        if self.accept("("):
            inner = self.constant()
            self.expect(")")
            return inner
        if self.accept("WARP_SZ"):
            return integer(WARP_SIZE)
        token = self.take("number")
        kind, value = self.number(token)
        if kind == "int":
            return integer(int(value), token.text.endswith("U") or bool(int(value) >> _BITS - 1))
        if kind == "f32":
            return Constant(ConstantKind.SINGLE, int(value))
        return Constant(ConstantKind.DOUBLE, float_of_bits(kind, int(value)) if kind == "f64" else float(value))

    def _signed(self, sign: str, value: Constant) -> Constant:
        if value.kind is ConstantKind.DOUBLE and sign in "+-":
            return Constant(ConstantKind.DOUBLE, -value.value if sign == "-" else value.value)
        self._check_integers(sign, value)
        number = int(value.value)
        if sign == "!":
            return integer(int(not number))
        if sign == "~":
            return integer(~number, unsigned=True)
        if sign in (".s64", ".u64"):
            return integer(number, unsigned=sign == ".u64")
        return integer(-number if sign == "-" else number, value.unsigned)

    def _joined(self, sign: str, a: Constant, b: Constant) -> Constant:
        if a.kind is b.kind is ConstantKind.DOUBLE and sign in _OF_DOUBLES:
            if sign == "/" and not b.value:
                raise self.fail("a constant expression divides by zero")
            result = _OF_DOUBLES[sign](a.value, b.value)
            return integer(int(result)) if sign in _COMPARISONS else Constant(ConstantKind.DOUBLE, result)
        self._check_integers(sign, a, b)
        if sign in ("/", "%") and not b.value:
            raise self.fail("a constant expression divides by zero")
        unsigned = a.unsigned or b.unsigned
        if sign in ("<<", ">>"):
            unsigned = a.unsigned
            b = integer(int(b.value) % _BITS)
        elif sign == "%":
            unsigned = True
        if unsigned:
            a, b = integer(int(a.value), unsigned=True), integer(int(b.value), unsigned=True)
        return integer(_OF_INTEGERS[sign](int(a.value), int(b.value)), unsigned and sign not in _SIGNED_RESULT)

    def _check_integers(self, sign: str, *values: Constant) -> None:
        for value in values:
            if value.kind is not ConstantKind.INTEGER:
                raise self.fail(f"{value} is {value.kind.value}; {sign} takes integers{_BOTH if sign in _OF_DOUBLES else ''}")


def _quotient(a: int, b: int) -> int:
    """a / b rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_COMPARISONS: dict[str, Callable[..., bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OF_DOUBLES: dict[str, Callable[..., float]] = {
    **_COMPARISONS,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_OF_INTEGERS: dict[str, Callable[[int, int], int]] = {
    **_COMPARISONS,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&&": lambda a, b: bool(a and b),
    "||": lambda a, b: bool(a or b),
}
_BOTH = ", or two doubles"
_SIGNED_RESULT = {*_COMPARISONS, "&&", "||"}
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_PRECEDENCE = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs}
