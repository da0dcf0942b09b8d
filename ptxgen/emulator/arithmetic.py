"""Arithmetic on lane values as LLVM IR beyond the operators: quotients, halves, extremes, bit counts, approximations."""

from __future__ import annotations

from typing import Any

from ptxgen.emulator.bits import SIGN
from ptxgen.emulator.emitter import vector
from ptxgen.emulator.rounding import Rounding
from ptxgen.emulator.values import Lanes, constant_value, fold
from ptxgen.isa.algebra import Number
from ptxgen.types import B32, B64, BF16, BF16X2, BY_NAME, F16, F16X2, F32, F64, PRED, S32, U16, U32, U64, DType

_APPROX = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh", "sqrt": "sqrt"}
_HALVES = {
    F16X2: F16,
    BF16X2: BF16,
    B32: BY_NAME["b16"],
    U32: U16,
    S32: BY_NAME["s16"],
    B64: B32,
    U64: U32,
    BY_NAME["s64"]: S32,
    BY_NAME["b128"]: B64,
    BY_NAME["b16"]: BY_NAME["b8"],
    U16: BY_NAME["u8"],
    BY_NAME["s16"]: BY_NAME["s8"],
    F64: F32,
    F32: BY_NAME["b16"],
}


class Arithmetic(Rounding):
    """What instructions compute."""

    def lanes_of(self, a: Number) -> tuple[Lanes, Lanes]:
        value = self.tight(self.like(a, U32))
        half = _HALVES[value.type]
        whole, part = BY_NAME[f"u{value.type.bits}"] if value.type.bits < 128 else value.type, half
        number = self.bits(value, whole)
        pieces = []
        for shift in (0, half.bits):
            moved = self.shift("lshr", number, shift) if shift else number
            integer = self.resize(moved, BY_NAME[f"u{half.bits}"], False)
            pieces.append(self.bits(integer, part))
        return pieces[0], pieces[1]

    def join(self, low: Number, high: Number, type: DType) -> Lanes:
        a, b = self.tight(self.like(low, U32)), self.tight(self.like(high, U32))
        width = a.type.bits
        whole = BY_NAME[f"u{type.bits}"] if type.bits < 128 else type
        piece = BY_NAME[f"u{width}"]
        bottom = self.resize(self.bits(a, piece), whole, False)
        top = self.shift("shl", self.resize(self.bits(b, piece), whole, False), width)
        return self.bits(self.binary("or", bottom, top), type)

    def byte(self, a: Number, index: int, type: DType) -> Lanes:
        number = self.bits(a, type if type.bits == 32 else U32)
        number = Lanes(self, type, number.name, number.uniform, number.constant)
        if type.is_signed:
            return self.shift("ashr", self.shift("shl", number, 24 - 8 * index), 24)
        return self.binary("and", self.shift("lshr", number, 8 * index), 255)

    def div(self, a: Number, b: Number) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        type = left.type
        if right.constant is None or right.constant == 0 or not isinstance(right.constant, int):
            zero = self.compare("eq", right, 0)
            quotient = self._wide_quotient(left, right) if type.bits == 64 else self._quotient(left, right)
            return self.select(zero, self.const(-1, type), quotient)
        if type.is_signed and right.constant == (1 << type.bits) - 1:
            return self.negate(left)
        return self.apply("sdiv" if type.is_signed else "udiv", left, right, type=type)

    def _quotient(self, a: Lanes, b: Lanes) -> Lanes:
        # A double holds 32-bit operands exactly, and their rounded quotient never reaches the next whole number.
        ratio = self.float_operation("fdiv", self.convert(a, F64), self.convert(b, F64))
        code = "fptosi" if a.type.is_signed else "fptoui"
        guarded = self.select(self.compare("eq", b, 0), self.const(0.0, F64), ratio)
        wide, target = (guarded.name, "i64") if guarded.uniform else (guarded.name, vector("i64"))
        whole = self.e.emit(f"{code} {guarded.llvm_type} {wide} to {target}")
        return self.resize(Lanes(self, U64, whole, guarded.uniform), a.type, False)

    def _wide_quotient(self, a: Lanes, b: Lanes) -> Lanes:
        code = "sdiv" if a.type.is_signed else "udiv"
        safe = self.select(self.compare("eq", b, 0), self.const(1, b.type), b)
        if a.type.is_signed:
            overflow = self.compare("eq", b, -1)
            safe = self.select(overflow, self.const(1, b.type), safe)
            return self.select(overflow, self.negate(a), self.out_of_line(code, a, safe))
        return self.out_of_line(code, a, safe)

    def rem(self, a: Number, b: Number) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        if isinstance(right.constant, int) and right.constant and right.constant != (1 << right.type.bits) - 1:
            return self.apply("srem" if left.type.is_signed else "urem", left, right)
        rest = self.binary("sub", left, self.binary("mul", self.div(left, right), right))
        return self.select(self.compare("eq", right, 0), self.const(-1, left.type), rest)

    def mul_hi(self, a: Number, b: Number) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        width = left.type.bits
        wide = BY_NAME["b128"] if width == 64 else BY_NAME[f"{'s' if left.type.is_signed else 'u'}{2 * width}"]
        sign = left.type.is_signed
        product = self.binary("mul", self.resize(left, wide, sign), self.resize(right, wide, sign))
        return self.resize(self.shift("lshr", product, width), left.type, False)

    def min(self, a: Number, b: Number) -> Lanes:
        return self._extreme("min", a, b)

    def max(self, a: Number, b: Number) -> Lanes:
        return self._extreme("max", a, b)

    def _extreme(self, which: str, a: Number, b: Number) -> Lanes:
        left = self.like(a, b.type if isinstance(b, Lanes) else U32)
        right = self.like(b, left.type)
        if left.type.is_float:
            x, y = self.as_arithmetic(left), self.as_arithmetic(right)
            return self.from_arithmetic(self.intrinsic(f"llvm.{which}imumnum", x, y), left.type)
        constant = fold(left.type, left.type, min if which == "min" else max, left, right)
        if constant is not None:
            return constant_value(self, left.type, constant)
        return self.intrinsic(f"llvm.{'s' if left.type.is_signed else 'u'}{which}", left, right)

    def isnan(self, a: Number) -> Lanes:
        value = self.as_arithmetic(self.like(a, F32))
        return self.apply("fcmp uno", value, value, type=PRED)

    def canonical(self, a: Number) -> Lanes:
        value = self.like(a, F32)
        if value.type == F32:
            return value if self.is_number(value) else Lanes(self, F32, value.name, value.uniform, loose=True)
        if value.type in (F16, BF16):
            integer = self.bits(value, U16)
            limit = 0x7C00 if value.type == F16 else 0x7F80
            nan = self.compare("gt", self.binary("and", integer, 0x7FFF), limit)
            return self.bits(self.select(nan, self.const(0x7FFF, U16), integer), value.type)
        return value

    def flush(self, a: Number) -> Lanes:
        value = self.like(a, F32)
        exponent = {F32: 0x7F800000, F16: 0x7C00, BF16: 0x7F80}[value.type]
        integer = BY_NAME[f"u{value.type.bits}"]
        number = Lanes(self, value.type, value.name, value.uniform)  # flushing leaves a NaN what it is
        seen = self.bits(number, integer)
        small = self.compare("eq", self.binary("and", seen, exponent), 0)
        flushed = self.select(small, self.binary("and", seen, SIGN[value.type]), seen)
        result = self.bits(flushed, value.type)
        return Lanes(self, value.type, result.name, result.uniform, loose=value.loose)

    def to_integral(self, a: Number, mode: str) -> Lanes:
        value = self.like(a, F32)
        number = self.as_arithmetic(value)
        function = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[mode]
        return self.from_arithmetic(self.intrinsic(f"llvm.{function}", number), value.type)

    def approx(self, function: str, a: Number) -> Lanes:
        value = self.like(a, F32)
        number = self.as_arithmetic(value)
        if function in _APPROX:
            return self.from_arithmetic(self.intrinsic(f"llvm.{_APPROX[function]}", number), value.type)
        wide = self.convert(number, F64)
        if function == "rsqrt":
            wide = self.intrinsic("llvm.sqrt", wide)
        elif function != "rcp":
            raise ValueError(f"no approximation of {function}; there are {', '.join([*_APPROX, 'rcp', 'rsqrt'])}")
        return self.convert(self.float_operation("fdiv", self.const(1.0, F64), wide), value.type)

    def popc(self, a: Number) -> Lanes:
        return self._count("llvm.ctpop", a)

    def clz(self, a: Number) -> Lanes:
        return self._count("llvm.ctlz", a, "i1 false")

    def _count(self, function: str, a: Number, *extra: Any) -> Lanes:
        value = self.like(a, U32)
        integer = self.bits(value, BY_NAME[f"u{value.type.bits}"])
        return self.resize(self.intrinsic(function, integer, extra=extra), U32, False)

    def brev(self, a: Number) -> Lanes:
        value = self.like(a, U32)
        integer = self.bits(value, BY_NAME[f"u{value.type.bits}"])
        return self.bits(self.intrinsic("llvm.bitreverse", integer), value.type)
