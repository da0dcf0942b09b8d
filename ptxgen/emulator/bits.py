"""Integers, bits and choices on lane values as LLVM IR: what rounding.py and arithmetic.py are made from."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence

from ptxgen.emulator.emitter import Emitter, literal, scalar, vector
from ptxgen.emulator.values import Lanes, Operators, constant_value, fold
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.types import BF16, BY_NAME, F16, F32, F64, PRED, U32, DType, Kind

_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
SIGN = {F16: 0x8000, BF16: 0x8000, F32: 1 << 31, F64: 1 << 63}


class Bits(Algebra, Operators):
    """The lowest layer of the algebra; lanes.py is the whole. `e` is the kernel in progress."""

    def __init__(self, e: Emitter) -> None:
        self.e = e
        self.splats: dict[str, str] = {}

    # Emission
    def spread(self, a: Lanes) -> str:
        """The vector that holds `a` in every lane."""
        if not a.uniform:
            return a.name
        element = scalar(a.type)
        if not a.name.startswith("%"):
            return f"splat ({element} {a.name})"
        if a.name not in self.splats:
            first = self.e.emit(f"insertelement {vector(element)} poison, {element} {a.name}, i32 0")
            kind = vector(element)
            self.splats[a.name] = self.e.emit(f"shufflevector {kind} {first}, {kind} poison, <32 x i32> zeroinitializer")
        return self.splats[a.name]

    def together(self, operands: Sequence[Lanes]) -> tuple[bool, list[str], str]:
        """Whether operands are uniform, all of them, their names as what they are then, and the LLVM type of that."""
        uniform = all(o.uniform for o in operands)
        names = [o.name if uniform else self.spread(o) for o in operands]
        element = scalar(operands[0].type)
        return uniform, names, element if uniform else vector(element)

    def apply(self, instruction: str, *operands: Lanes, type: DType | None = None) -> Lanes:
        """An instruction of LLVM on operands of one type, which is that of the result, too, unless `type` is."""
        uniform, names, kind = self.together(operands)
        return Lanes(self, type or operands[0].type, self.e.emit(f"{instruction} {kind} {', '.join(names)}"), uniform)

    def intrinsic(self, name: str, *operands: Lanes, extra: Sequence[str] = ()) -> Lanes:
        """`apply` of an overloaded intrinsic; `extra` are further arguments with their types."""
        uniform, names, kind = self.together(operands)
        full = f"{name}.{mangled(kind)}"
        self.e.declare(full, kind, *[kind] * len(names), *(x.split()[0] for x in extra))
        arguments = ", ".join([*(f"{kind} {n}" for n in names), *extra])
        return Lanes(self, operands[0].type, self.e.emit(f"call {kind} @{full}({arguments})"), uniform)

    def out_of_line(self, instruction: str, *operands: Lanes) -> Lanes:
        """`apply` in a function of its own, for what LLVM expands into very much code."""
        uniform, names, kind = self.together(operands)
        if uniform:
            return self.apply(instruction, *operands)
        function = f"{instruction}.{mangled(kind)}"
        letters = "abc"[: len(names)]
        parameters = ", ".join(f"{kind} %{x}" for x in letters)
        self.e.functions.setdefault(
            function,
            f"define internal {kind} @{function}({parameters}) noinline {{\n"
            f"  %r = {instruction} {kind} {', '.join('%' + x for x in letters)}\n  ret {kind} %r\n}}",
        )
        call = f"call {kind} @{function}({', '.join(f'{kind} {n}' for n in names)})"
        return Lanes(self, operands[0].type, self.e.emit(call), uniform)

    # Constants, bits and choices
    def const(self, value: float, type: DType) -> Lanes:
        if type.kind is Kind.FLOAT and scalar(type)[0] == "i":
            return Lanes(self, type, literal(self.constant_bits(value, type), type), True)
        if type.kind is Kind.FLOAT:
            return Lanes(self, type, literal(value, type), True)
        return constant_value(self, type, int(value) & ((1 << type.bits) - 1))

    def like(self, value: object, type: DType) -> Lanes:
        """`value` as lanes: itself, or a Python number as `type`."""
        if isinstance(value, Lanes):
            return value
        if isinstance(value, int | float):
            return self.const(value, type)
        raise TypeError(f"a lane value or a number was expected, got {value!r}")

    def bits(self, a: Number, type: DType) -> Lanes:
        value = self.tight(self.like(a, type))
        if value.type.bits != type.bits:
            raise TypeError(f"{value.type} and {type} differ in size")
        if scalar(value.type) == scalar(type):
            return Lanes(self, type, value.name, value.uniform, value.constant)
        if value.constant is not None and scalar(type)[0] == "i" and type.kind is not Kind.FLOAT:
            return constant_value(self, type, value.constant)
        source, target = value.llvm_type, scalar(type) if value.uniform else vector(scalar(type))
        return Lanes(self, type, self.e.emit(f"bitcast {source} {value.name} to {target}"), value.uniform)

    def select(self, p: Number, a: Number, b: Number) -> Lanes:
        chosen = self.like(p, PRED)
        first = self.like(a, b.type if isinstance(b, Lanes) else U32)
        second = self.like(b, first.type)
        if isinstance(chosen.constant, int):
            return first if chosen.constant else second
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
        return Lanes(self, first.type, name, uniform, loose=loose)

    def tight(self, a: Lanes) -> Lanes:
        """`a` with its NaNs made canonical, if they are not yet."""
        if not a.loose:
            return a
        # On the bits: of a select between floats LLVM holds that any NaN will do, and folds it behind a square root.
        seen = self.bits(Lanes(self, a.type, a.name, a.uniform), U32)
        nan = self.compare("gt", self.binary("and", seen, 0x7FFFFFFF), 0x7F800000)
        return self.bits(self.select(nan, self.const(0x7FFFFFFF, U32), seen), a.type)

    def is_number(self, a: Lanes) -> bool:
        """Whether `a` is a float constant that is no NaN."""
        return a.uniform and a.name.startswith("0x") and (int(a.name, 16) & (1 << 63) - 1) <= 0x7FF << 52

    def constant_bits(self, value: float, type: DType) -> int:
        """The bits of a Python number as f16, bf16 or a packed pair of them; an int for a packed type is its bits."""
        if type.lanes == 2 or type.name == "tf32":
            return int(value)
        if type == F16:
            return int(struct.unpack("<H", struct.pack("<e", value))[0])
        bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16

    def resize(self, a: Lanes, type: DType, extend_sign: bool) -> Lanes:
        """An integer (or predicate) as another integer type, truncated or extended."""
        if a.type.bits == type.bits:
            return Lanes(self, type, a.name, a.uniform, a.constant)
        constant = fold(a.type if not extend_sign or a.type.is_signed else BY_NAME[f"s{a.type.bits}"], type, lambda x: x, a)
        if constant is not None and (extend_sign or not a.type.is_signed or type.bits < a.type.bits):
            return constant_value(self, type, constant)
        code = "trunc" if type.bits < a.type.bits else "sext" if extend_sign else "zext"
        target = scalar(type) if a.uniform else vector(scalar(type))
        return Lanes(self, type, self.e.emit(f"{code} {a.llvm_type} {a.name} to {target}"), a.uniform)

    # Operators
    def binary(self, operation: str, a: Number, b: object) -> Lanes:
        left = self.like(a, U32)
        right = self.like(b, left.type)
        type = left.type
        if type.bits != right.type.bits:
            raise TypeError(f"{operation} needs operands of one size, got {type} and {right.type}")
        if scalar(right.type) != scalar(type) or type.is_float:
            wide = BY_NAME[f"b{type.bits}"]
            return self.bits(self.binary(operation, self.bits(left, wide), self.bits(right, wide)), type)
        constant = fold(type, type, _FOLDS[operation], left, right)
        if constant is not None:
            return constant_value(self, type, constant)
        if right.constant == 0 and operation in ("add", "sub", "or", "xor"):
            return left
        return self.apply(_INTEGER[operation], left, right, type=type)

    def shift(self, operation: str, a: Lanes, count: object) -> Lanes:
        width = a.type.bits
        by = self.like(count, U32)
        if a.type.is_float:
            raise TypeError("floats cannot be shifted")
        if by.constant is not None:
            limit = width if operation != "ashr" else width - 1
            amounts = by.constant if isinstance(by.constant, tuple) else (by.constant,)
            clamped = tuple(min(n, limit) for n in amounts)
            if isinstance(by.constant, int) and clamped[0] == width:
                return constant_value(self, a.type, 0)
            if isinstance(by.constant, int) and not clamped[0]:
                return a
            if max(clamped) < width:
                amount = constant_value(
                    self, BY_NAME["b128" if width == 128 else f"u{width}"], clamped if len(clamped) > 1 else clamped[0]
                )
                shifts: dict[str, Callable[[int, int], int]] = {"shl": lambda x, n: x << n}
                constant = fold(a.type, a.type, shifts.get(operation, lambda x, n: x >> n), a, amount)
                if constant is not None:
                    return constant_value(self, a.type, constant)
                return self.apply(operation, a, amount)
        amount = self.resize(by, BY_NAME[f"u{width}"], False) if by.type.bits < width else by
        small = self.compare("lt", Lanes(self, BY_NAME[f"u{amount.type.bits}"], amount.name, amount.uniform), width)
        within = self.resize(self.binary("and", amount, width - 1), BY_NAME[f"u{width}"], False)
        moved = self.apply(operation, a, within)
        signs = operation == "ashr"
        end = self.apply("ashr", a, constant_value(self, a.type, width - 1)) if signs else self.const(0, a.type)
        return self.select(small, moved, end)

    def compare(self, operation: str, a: Lanes, other: object) -> Lanes:
        b = self.like(other, a.type)
        constant = fold(a.type, PRED, lambda x, y: int(_FOLDS[operation](x, y)), a, b)
        if constant is not None:
            return constant_value(self, PRED, constant)
        sign = "s" if a.type.is_signed else "u"
        code = operation if operation in ("eq", "ne") else sign + operation
        return self.apply(f"icmp {code}", a, b, type=PRED)

    def negate(self, a: Lanes) -> Lanes:
        if not a.type.is_float:
            return self.binary("sub", self.const(0, a.type), a)
        a = self.tight(a)
        if scalar(a.type)[0] == "i":
            integer = BY_NAME[f"u{a.type.bits}"]
            sign = 0x80008000 if a.type.lanes == 2 else SIGN[a.type]
            return self.bits(self.binary("xor", self.bits(a, integer), sign), a.type)
        return Lanes(self, a.type, self.e.emit(f"fneg {a.llvm_type} {a.name}"), a.uniform)

    def abs(self, a: Number) -> Lanes:
        value = self.like(a, U32)
        if not value.type.is_float:
            if not value.type.is_signed:
                return value
            return self.select(self.compare("lt", value, 0), self.negate(value), value)
        if scalar(value.type)[0] == "i":
            integer = BY_NAME[f"u{value.type.bits}"]
            keep = 0x7FFF7FFF if value.type.lanes == 2 else SIGN[value.type] - 1
            return self.bits(self.binary("and", self.bits(value, integer), keep), value.type)
        positive = self.intrinsic("llvm.fabs", value)
        positive.loose = value.loose
        return positive


def mangled(kind: str) -> str:
    """How LLVM spells a type inside an intrinsic's name."""
    names = {"float": "f32", "double": "f64", "half": "f16"}
    if kind.startswith("<"):
        count, _, element = kind[1:-1].partition(" x ")
        return f"v{count}{names.get(element, element)}"
    return names.get(kind, kind)
