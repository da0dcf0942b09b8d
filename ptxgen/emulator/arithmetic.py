"""Arithmetic on lane values as LLVM IR: integers, floats, comparisons, bit counts. How floats round is rounding.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxgen.emulator.emitter import literal, scalar, vector
from ptxgen.emulator.rounding import Rounding
from ptxgen.emulator.values import Lanes, fold, known_value
from ptxgen.isa.algebra import Value
from ptxgen.types import B32, B64, BF16, BF16X2, BY_NAME, F16, F16X2, F32, F64, PRED, S32, U16, U32, U64, DType, Kind

_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_APPROX = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh", "sqrt": "sqrt"}
_HALVES = {
    F16X2: F16, BF16X2: BF16, B32: BY_NAME["b16"], U32: U16, S32: BY_NAME["s16"], B64: B32, U64: U32, BY_NAME["s64"]: S32,
    BY_NAME["b128"]: B64, BY_NAME["b16"]: BY_NAME["b8"], U16: BY_NAME["u8"], BY_NAME["s16"]: BY_NAME["s8"],
    F64: F32, F32: BY_NAME["b16"],
}  # fmt: skip
SIGN = {F16: 0x8000, BF16: 0x8000, F32: 1 << 31, F64: 1 << 63}


class Arithmetic(Rounding):
    # Constants, selection, and bits
    def const(self, value: float, type: DType) -> Lanes:
        if type.kind is Kind.FLOAT and scalar(type)[0] == "i":
            return Lanes(self.whole, type, literal(self.constant_bits(value, type), type), True)
        if type.kind is Kind.FLOAT:
            return Lanes(self.whole, type, literal(value, type), True)
        return known_value(self.whole, type, int(value) & ((1 << type.bits) - 1))

    def like(self, value: object, type: DType) -> Lanes:
        """`value` as lanes: itself, or a Python number as `type`."""
        if isinstance(value, Lanes):
            return value
        if isinstance(value, int | float):
            return self.const(value, type)
        raise TypeError(f"a lane value or a number was expected, got {value!r}")

    def bits(self, a: Value, type: DType) -> Lanes:
        value = self.tight(self.like(a, type))
        if value.type.bits != type.bits:
            raise TypeError(f"{value.type} and {type} differ in size")
        if scalar(value.type) == scalar(type):
            return Lanes(self.whole, type, value.name, value.uniform, value.known)
        if value.known is not None and scalar(type)[0] == "i" and type.kind is not Kind.FLOAT:
            return known_value(self.whole, type, value.known)
        source, target = value.llvm_type, scalar(type) if value.uniform else vector(scalar(type))
        return Lanes(self.whole, type, self.e.emit(f"bitcast {source} {value.name} to {target}"), value.uniform)

    def select(self, p: Value, a: Value, b: Value) -> Lanes:
        chosen = self.like(p, PRED)
        first = self.like(a, b.type if isinstance(b, Lanes) else U32)
        second = self.like(b, first.type)
        if isinstance(chosen.known, int):
            return first if chosen.known else second
        loose = (first.loose or self.is_number(first)) and (second.loose or self.is_number(second))
        if not loose:
            first, second = self.tight(first), self.tight(second)
        loose = loose and (first.loose or second.loose)
        if first.type.bits != second.type.bits:
            raise TypeError(f"select needs operands of one size, got {first.type} and {second.type}")
        if scalar(first.type) != scalar(second.type):
            second = self.bits(second, first.type)
        uniform = chosen.uniform and first.uniform and second.uniform
        one, other = (first.name, second.name) if uniform else (self.spread(first), self.spread(second))
        kind = scalar(first.type) if uniform else vector(scalar(first.type))
        condition = f"{chosen.llvm_type} {chosen.name}"
        name = self.e.emit(f"select {condition}, {kind} {one}, {kind} {other}")
        return Lanes(self.whole, first.type, name, uniform, loose=loose)

    def lanes_of(self, a: Value) -> tuple[Lanes, Lanes]:
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

    def join(self, low: Value, high: Value, type: DType) -> Lanes:
        a, b = self.tight(self.like(low, U32)), self.tight(self.like(high, U32))
        width = a.type.bits
        whole = BY_NAME[f"u{type.bits}"] if type.bits < 128 else type
        piece = BY_NAME[f"u{width}"]
        bottom = self.resize(self.bits(a, piece), whole, False)
        top = self.shift("shl", self.resize(self.bits(b, piece), whole, False), width)
        return self.bits(self.binary("or", bottom, top), type)

    def byte(self, a: Value, index: int, type: DType) -> Lanes:
        number = self.bits(a, type if type.bits == 32 else U32)
        number = Lanes(self.whole, type, number.name, number.uniform, number.known)
        if type.is_signed:
            return self.shift("ashr", self.shift("shl", number, 24 - 8 * index), 24)
        return self.binary("and", self.shift("lshr", number, 8 * index), 255)

    # Operators
    def binary(self, operation: str, a: Value, b: object) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        type = left.type
        if type.bits != right.type.bits:
            raise TypeError(f"{operation} needs operands of one size, got {type} and {right.type}")
        if type.is_float and operation in _FLOAT:
            return self.float_operation(_FLOAT[operation], left, right)
        if scalar(right.type) != scalar(type) or type.is_float:
            wide = BY_NAME[f"b{type.bits}"]
            return self.bits(self.binary(operation, self.bits(left, wide), self.bits(right, wide)), type)
        known = fold(type, type, _FOLDS[operation], left, right)
        if known is not None:
            return known_value(self.whole, type, known)
        if right.known == 0 and operation in ("add", "sub", "or", "xor"):
            return left
        name, uniform = self.apply(_INTEGER[operation], left, right)
        return Lanes(self.whole, type, name, uniform)

    def shift(self, operation: str, a: Lanes, count: object) -> Lanes:
        width = a.type.bits
        by = self.like(count, U32)
        if a.type.is_float:
            raise TypeError("floats cannot be shifted")
        if by.known is not None:
            limit = width if operation != "ashr" else width - 1
            amounts = by.known if isinstance(by.known, tuple) else (by.known,)
            clamped = tuple(min(n, limit) for n in amounts)
            if isinstance(by.known, int) and clamped[0] == width:
                return known_value(self.whole, a.type, 0)
            if isinstance(by.known, int) and not clamped[0]:
                return a
            if max(clamped) < width:
                amount = known_value(
                    self.whole, BY_NAME["b128" if width == 128 else f"u{width}"], clamped if len(clamped) > 1 else clamped[0]
                )
                shifts: dict[str, Callable[[int, int], int]] = {"shl": lambda x, n: x << n}
                known = fold(a.type, a.type, shifts.get(operation, lambda x, n: x >> n), a, amount)
                if known is not None:
                    return known_value(self.whole, a.type, known)
                name, uniform = self.apply(operation, a, amount)
                return Lanes(self.whole, a.type, name, uniform)
        amount = self.resize(by, BY_NAME[f"u{width}"], False) if by.type.bits < width else by
        small = self.compare("lt", Lanes(self.whole, BY_NAME[f"u{amount.type.bits}"], amount.name, amount.uniform), width)
        within = self.resize(self.binary("and", amount, width - 1), BY_NAME[f"u{width}"], False)
        name, uniform = self.apply(operation, a, within)
        moved = Lanes(self.whole, a.type, name, uniform)
        if operation == "ashr":
            end, uniform = self.apply("ashr", a, known_value(self.whole, a.type, width - 1))
            return self.select(small, moved, Lanes(self.whole, a.type, end, uniform))
        return self.select(small, moved, self.const(0, a.type))

    def compare(self, operation: str, a: Lanes, other: object) -> Lanes:
        b = self.like(other, a.type)
        if a.type.is_float:
            left, right = self.as_arithmetic(a), self.as_arithmetic(b)
            code = "one" if operation == "ne" else "o" + operation
            name, uniform = self.apply(f"fcmp {code}", left, right)
            return Lanes(self.whole, PRED, name, uniform)
        known = fold(a.type, PRED, lambda x, y: int(_FOLDS[operation](x, y)), a, b)
        if known is not None:
            return known_value(self.whole, PRED, known)
        sign = "s" if a.type.is_signed else "u"
        code = operation if operation in ("eq", "ne") else sign + operation
        name, uniform = self.apply(f"icmp {code}", a, b)
        return Lanes(self.whole, PRED, name, uniform)

    def negate(self, a: Lanes) -> Lanes:
        if not a.type.is_float:
            return self.binary("sub", self.const(0, a.type), a)
        a = self.tight(a)
        if scalar(a.type)[0] == "i":
            integer = BY_NAME[f"u{a.type.bits}"]
            sign = 0x80008000 if a.type.lanes == 2 else SIGN[a.type]
            return self.bits(self.binary("xor", self.bits(a, integer), sign), a.type)
        return Lanes(self.whole, a.type, self.e.emit(f"fneg {a.llvm_type} {a.name}"), a.uniform)

    # Beyond the operators
    def div(self, a: Value, b: Value) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        type = left.type
        if right.known is None or right.known == 0 or not isinstance(right.known, int):
            zero = self.compare("eq", right, 0)
            quotient = self._wide_quotient(left, right) if type.bits == 64 else self._quotient(left, right)
            return self.select(zero, self.const(-1, type), quotient)
        if type.is_signed and right.known == (1 << type.bits) - 1:
            return self.negate(left)
        name, uniform = self.apply("sdiv" if type.is_signed else "udiv", left, right)
        return Lanes(self.whole, type, name, uniform)

    def _quotient(self, a: Lanes, b: Lanes) -> Lanes:
        # A double holds 32-bit operands exactly, and their rounded quotient never reaches the next whole number.
        ratio = self.float_operation("fdiv", self.convert(a, F64), self.convert(b, F64))
        code = "fptosi" if a.type.is_signed else "fptoui"
        guarded = self.select(self.compare("eq", b, 0), self.const(0.0, F64), ratio)
        wide, target = (guarded.name, "i64") if guarded.uniform else (guarded.name, vector("i64"))
        whole = self.e.emit(f"{code} {guarded.llvm_type} {wide} to {target}")
        return self.resize(Lanes(self.whole, U64, whole, guarded.uniform), a.type, False)

    def _wide_quotient(self, a: Lanes, b: Lanes) -> Lanes:
        code = "sdiv" if a.type.is_signed else "udiv"
        safe = self.select(self.compare("eq", b, 0), self.const(1, b.type), b)
        if a.type.is_signed:
            overflow = self.compare("eq", b, -1)
            safe = self.select(overflow, self.const(1, b.type), safe)
            name, uniform = self.out_of_line(code, a, safe)
            return self.select(overflow, self.negate(a), Lanes(self.whole, a.type, name, uniform))
        name, uniform = self.out_of_line(code, a, safe)
        return Lanes(self.whole, a.type, name, uniform)

    def rem(self, a: Value, b: Value) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        if isinstance(right.known, int) and right.known and right.known != (1 << right.type.bits) - 1:
            name, uniform = self.apply("srem" if left.type.is_signed else "urem", left, right)
            return Lanes(self.whole, left.type, name, uniform)
        rest = self.binary("sub", left, self.binary("mul", self.div(left, right), right))
        return self.select(self.compare("eq", right, 0), self.const(-1, left.type), rest)

    def mul_hi(self, a: Value, b: Value) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        width = left.type.bits
        wide = BY_NAME["b128"] if width == 64 else BY_NAME[f"{'s' if left.type.is_signed else 'u'}{2 * width}"]
        sign = left.type.is_signed
        product = self.binary("mul", self.resize(left, wide, sign), self.resize(right, wide, sign))
        return self.resize(self.shift("lshr", product, width), left.type, False)

    def min(self, a: Value, b: Value) -> Lanes:
        return self._extreme("min", a, b)

    def max(self, a: Value, b: Value) -> Lanes:
        return self._extreme("max", a, b)

    def _extreme(self, which: str, a: Value, b: Value) -> Lanes:
        left = self.like(a, b.type if isinstance(b, Lanes) else U32)
        right = self.like(b, left.type)
        if left.type.is_float:
            x, y = self.as_arithmetic(left), self.as_arithmetic(right)
            name, uniform = self.intrinsic(f"llvm.{which}imumnum", x, y)
            return self.from_arithmetic(Lanes(self.whole, x.type, name, uniform), left.type)
        known = fold(left.type, left.type, min if which == "min" else max, left, right)
        if known is not None:
            return known_value(self.whole, left.type, known)
        name, uniform = self.intrinsic(f"llvm.{'s' if left.type.is_signed else 'u'}{which}", left, right)
        return Lanes(self.whole, left.type, name, uniform)

    def abs(self, a: Value) -> Lanes:
        value = self.like(a, U32)
        if not value.type.is_float:
            if not value.type.is_signed:
                return value
            return self.select(self.compare("lt", value, 0), self.negate(value), value)
        if scalar(value.type)[0] == "i":
            integer = BY_NAME[f"u{value.type.bits}"]
            keep = 0x7FFF7FFF if value.type.lanes == 2 else SIGN[value.type] - 1
            return self.bits(self.binary("and", self.bits(value, integer), keep), value.type)
        name, uniform = self.intrinsic("llvm.fabs", value)
        return Lanes(self.whole, value.type, name, uniform, loose=value.loose)

    def isnan(self, a: Value) -> Lanes:
        value = self.as_arithmetic(self.like(a, F32))
        name, uniform = self.apply("fcmp uno", value, value)
        return Lanes(self.whole, PRED, name, uniform)

    def canonical(self, a: Value) -> Lanes:
        value = self.like(a, F32)
        if value.type == F32:
            return value if self.is_number(value) else Lanes(self.whole, F32, value.name, value.uniform, loose=True)
        if value.type in (F16, BF16):
            integer = self.bits(value, U16)
            limit = 0x7C00 if value.type == F16 else 0x7F80
            nan = self.compare("gt", self.binary("and", integer, 0x7FFF), limit)
            return self.bits(self.select(nan, self.const(0x7FFF, U16), integer), value.type)
        return value

    def flush(self, a: Value) -> Lanes:
        value = self.like(a, F32)
        exponent = {F32: 0x7F800000, F16: 0x7C00, BF16: 0x7F80}[value.type]
        integer = BY_NAME[f"u{value.type.bits}"]
        number = Lanes(self.whole, value.type, value.name, value.uniform)  # flushing leaves a NaN what it is
        seen = self.bits(number, integer)
        small = self.compare("eq", self.binary("and", seen, exponent), 0)
        flushed = self.select(small, self.binary("and", seen, SIGN[value.type]), seen)
        result = self.bits(flushed, value.type)
        return Lanes(self.whole, value.type, result.name, result.uniform, loose=value.loose)

    def to_integral(self, a: Value, mode: str) -> Lanes:
        value = self.like(a, F32)
        number = self.as_arithmetic(value)
        function = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[mode]
        name, uniform = self.intrinsic(f"llvm.{function}", number)
        return self.from_arithmetic(Lanes(self.whole, number.type, name, uniform), value.type)

    def approx(self, function: str, a: Value) -> Lanes:
        value = self.like(a, F32)
        number = self.as_arithmetic(value)
        if function in _APPROX:
            name, uniform = self.intrinsic(f"llvm.{_APPROX[function]}", number)
            return self.from_arithmetic(Lanes(self.whole, number.type, name, uniform), value.type)
        wide = self.convert(number, F64)
        if function == "rsqrt":
            name, uniform = self.intrinsic("llvm.sqrt", wide)
            wide = Lanes(self.whole, F64, name, uniform)
        elif function != "rcp":
            raise ValueError(f"no approximation of {function}; there are {', '.join([*_APPROX, 'rcp', 'rsqrt'])}")
        return self.convert(self.float_operation("fdiv", self.const(1.0, F64), wide), value.type)

    def popc(self, a: Value) -> Lanes:
        return self._count("llvm.ctpop", a)

    def clz(self, a: Value) -> Lanes:
        return self._count("llvm.ctlz", a, "i1 false")

    def _count(self, function: str, a: Value, *extra: Any) -> Lanes:
        value = self.like(a, U32)
        integer = self.bits(value, BY_NAME[f"u{value.type.bits}"])
        name, uniform = self.intrinsic(function, integer, extra=extra)
        return self.resize(Lanes(self.whole, integer.type, name, uniform), U32, False)

    def brev(self, a: Value) -> Lanes:
        value = self.like(a, U32)
        integer = self.bits(value, BY_NAME[f"u{value.type.bits}"])
        name, uniform = self.intrinsic("llvm.bitreverse", integer)
        return self.bits(Lanes(self.whole, integer.type, name, uniform), value.type)
