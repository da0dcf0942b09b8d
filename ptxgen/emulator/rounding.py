"""Floats as LLVM IR, rounded once and as asked: operations in the four directions, conversions between every pair of types.

No fast-math flag is ever written, so LLVM neither reorders nor contracts. f16 and bf16 are computed in f32, which is exact
after the second rounding for + - * / and sqrt (24 >= 2*11+2 bits); fma goes through f64 rounded to odd, which no later
rounding can spoil (Boldo and Melquiond, 2008)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ptxgen.emulator.emitter import Emitter, scalar, vector
from ptxgen.emulator.values import Lanes, fold, known_value
from ptxgen.isa.algebra import Value
from ptxgen.types import BF16, BY_NAME, F16, F32, F64, PRED, U16, U32, U64, DType

if TYPE_CHECKING:
    from ptxgen.emulator.lanes import LaneAlgebra

_DIRECTIONS = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}  # the numbers of llvm.set.rounding


class Rounding:
    e: Emitter
    whole: LaneAlgebra
    mode: str = "rn"
    splats: dict[str, str]

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

    def _together(self, operands: Sequence[Lanes]) -> tuple[bool, list[str], str]:
        uniform = all(o.uniform for o in operands)
        names = [o.name if uniform else self.spread(o) for o in operands]
        element = scalar(operands[0].type)
        return uniform, names, element if uniform else vector(element)

    def apply(self, instruction: str, *operands: Lanes) -> tuple[str, bool]:
        uniform, names, kind = self._together(operands)
        return self.e.emit(f"{instruction} {kind} {', '.join(names)}"), uniform

    def intrinsic(self, name: str, *operands: Lanes, extra: Sequence[str] = ()) -> tuple[str, bool]:
        """Call an overloaded intrinsic on operands of one type; `extra` are further arguments with their types."""
        uniform, names, kind = self._together(operands)
        full = f"{name}.{mangled(kind)}"
        self.e.declare(full, kind, *[kind] * len(names), *(x.split()[0] for x in extra))
        arguments = ", ".join([*(f"{kind} {n}" for n in names), *extra])
        return self.e.emit(f"call {kind} @{full}({arguments})"), uniform

    def out_of_line(self, instruction: str, *operands: Lanes) -> tuple[str, bool]:
        """`apply` in a function of its own, for what LLVM expands into very much code."""
        uniform, names, kind = self._together(operands)
        if uniform:
            return self.e.emit(f"{instruction} {kind} {', '.join(names)}"), uniform
        function = f"{instruction}.{mangled(kind)}"
        letters = "abc"[: len(names)]
        parameters = ", ".join(f"{kind} %{x}" for x in letters)
        self.e.functions.setdefault(
            function,
            f"define internal {kind} @{function}({parameters}) noinline {{\n"
            f"  %r = {instruction} {kind} {', '.join('%' + x for x in letters)}\n  ret {kind} %r\n}}",
        )
        return self.e.emit(f"call {kind} @{function}({', '.join(f'{kind} {n}' for n in names)})"), uniform

    # NaN
    def tight(self, a: Lanes) -> Lanes:
        """`a` with its NaNs made canonical, if they are not yet."""
        if not a.loose:
            return a
        # On the bits: of a select between floats LLVM holds that any NaN will do, and folds it behind a square root.
        v = self.whole
        seen = v.bits(Lanes(v, a.type, a.name, a.uniform), U32)
        nan = v.compare("gt", v.binary("and", seen, 0x7FFFFFFF), 0x7F800000)
        return v.bits(v.select(nan, v.const(0x7FFFFFFF, U32), seen), a.type)

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

    # Operations
    def as_arithmetic(self, a: Lanes) -> Lanes:
        """f16 and bf16 as the f32 of the same value."""
        return self.convert(a, F32) if a.type in (F16, BF16) else a

    def from_arithmetic(self, a: Lanes, type: DType) -> Lanes:
        return a if a.type == type else self.convert(a, type)

    def float_operation(self, instruction: str, a: Lanes, b: Lanes) -> Lanes:
        """fadd, fsub, fmul or fdiv, rounded in the mode that rules."""
        x, y = self.as_arithmetic(a), self.as_arithmetic(b)
        if self.mode == "rn":
            name, uniform = self.apply(instruction, x, y)
        else:
            name, uniform = self.directed(instruction, x.type, x, y)
        return self.from_arithmetic(Lanes(self.whole, x.type, name, uniform), a.type)

    def fma(self, a: Value, b: Value, c: Value) -> Lanes:
        x, y, z = (self.whole.like(o, F32) for o in (a, b, c))
        if x.type in (F16, BF16):
            return self._narrow_fma(x, y, z)
        if self.mode == "rn":
            name, uniform = self.intrinsic("llvm.fma", x, y, z)
        else:
            name, uniform = self.directed("fma", x.type, x, y, z)
        return Lanes(self.whole, x.type, name, uniform)

    def sqrt(self, a: Value) -> Lanes:
        value = self.whole.like(a, F32)
        x = self.as_arithmetic(value)
        if self.mode == "rn":
            name, uniform = self.intrinsic("llvm.sqrt", x)
        else:
            name, uniform = self.directed("sqrt", x.type, x)
        return self.from_arithmetic(Lanes(self.whole, x.type, name, uniform), value.type)

    def rounded(self, mode: str, work: Callable[..., Value], *operands: Value) -> Lanes:
        before, self.mode = self.mode, mode or "rn"
        if self.mode not in _DIRECTIONS:
            raise ValueError(f"no rounding {mode}; there are {', '.join(_DIRECTIONS)}")
        try:
            return self.whole.like(work(*operands), F32)
        finally:
            self.mode = before

    def directed(self, operation: str, result: DType, *operands: Lanes) -> tuple[str, bool]:
        """An operation in a function of its own that sets the rounding direction, and sets it back."""
        uniform, names, kind = self._together(operands)
        target = scalar(result) if uniform else vector(scalar(result))
        changes = kind != target
        intrinsic = f"llvm.experimental.constrained.{operation}.{mangled(target)}" + (f".{mangled(kind)}" if changes else "")
        function = f"{operation}.{self.mode}.{mangled(kind)}.{mangled(target)}"
        letters = "abc"[: len(names)]
        arguments = ", ".join(f"{kind} %{x}" for x in letters)
        self.e.declare("llvm.set.rounding", "void", "i32")
        self.e.declare(intrinsic, target, *[kind] * len(names), "metadata", "metadata")
        self.e.functions.setdefault(
            function,
            f"define internal {target} @{function}({arguments}) noinline strictfp {{\n"
            f"  call void @llvm.set.rounding(i32 {_DIRECTIONS[self.mode]}) strictfp\n"
            f'  %r = call {target} @{intrinsic}({arguments}, metadata !"round.dynamic", metadata !"fpexcept.strict") strictfp\n'
            f"  call void @llvm.set.rounding(i32 1) strictfp\n  ret {target} %r\n}}",
        )
        return self.e.emit(f"call {target} @{function}({', '.join(f'{kind} {n}' for n in names)})"), uniform

    def _narrow_fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        mode, self.mode = self.mode, "rn"
        x, y, z = (self.convert(o, F64) for o in (a, b, c))
        product = self.float_operation("fmul", x, y)  # exact: at most 22 bits
        total = self.float_operation("fadd", product, z)
        other = self.float_operation("fsub", total, product)
        lost = self.float_operation(
            "fadd",
            self.float_operation("fsub", product, self.float_operation("fsub", total, other)),
            self.float_operation("fsub", z, other),
        )
        bits = self.whole.bits(total, U64)
        grows = self.whole.compare("eq", self.whole.compare("gt", lost, 0.0), self.whole.compare("gt", total, 0.0))
        nearer = self.whole.select(grows, self.whole.binary("add", bits, 1), self.whole.binary("sub", bits, 1))
        even = self.whole.compare("eq", self.whole.binary("and", bits, 1), 0)
        inexact = self.whole.binary("and", self.whole.compare("ne", lost, 0.0), even)
        odd = self.whole.bits(self.whole.select(inexact, nearer, bits), F64)
        self.mode = mode
        return self.convert(odd, a.type)

    # Conversions
    def resize(self, a: Lanes, type: DType, extend_sign: bool) -> Lanes:
        """An integer (or predicate) as another integer type, truncated or extended."""
        if a.type.bits == type.bits:
            return Lanes(self.whole, type, a.name, a.uniform, a.known)
        known = fold(a.type if not extend_sign or a.type.is_signed else BY_NAME[f"s{a.type.bits}"], type, lambda x: x, a)
        if known is not None and (extend_sign or not a.type.is_signed or type.bits < a.type.bits):
            return known_value(self.whole, type, known)
        code = "trunc" if type.bits < a.type.bits else "sext" if extend_sign else "zext"
        target = scalar(type) if a.uniform else vector(scalar(type))
        return Lanes(self.whole, type, self.e.emit(f"{code} {a.llvm_type} {a.name} to {target}"), a.uniform)

    def convert(self, a: Value, type: DType) -> Lanes:
        value = self.whole.like(a, type)
        source = value.type
        if source == type:
            return value
        if not source.is_float and not type.is_float:
            return self.resize(value, type, source.is_signed)
        if not source.is_float:
            return self._from_integer(value, type)
        if not type.is_float:
            return self._to_integer(value, type)
        return self._between_floats(self.tight(value), type)

    def _cast(self, code: str, a: Lanes, type: DType) -> Lanes:
        if self.mode != "rn" and code in ("fptrunc", "sitofp", "uitofp"):
            name, uniform = self.directed(code, type, a)
            return Lanes(self.whole, type, name, uniform)
        target = scalar(type) if a.uniform else vector(scalar(type))
        return Lanes(self.whole, type, self.e.emit(f"{code} {a.llvm_type} {a.name} to {target}"), a.uniform)

    def _from_integer(self, a: Lanes, type: DType) -> Lanes:
        code = "sitofp" if a.type.is_signed else "uitofp"
        if type in (F32, F64):
            return self._cast(code, a, type)
        if a.type.bits == 64:
            # 53 bits and a sticky one are all that a narrow result can tell apart, and fit a double.
            low = self.whole.compare("ne", self.whole.binary("and", a, 0x7FF), 0)
            cut = self.whole.binary("and", a, ~0x7FF)
            sticky = self.whole.binary(
                "or", cut, self.whole.select(low, self.whole.const(0x800, a.type), self.whole.const(0, a.type))
            )
            large = self.whole.compare("ge", self.whole.abs(a) if a.type.is_signed else a, 1 << 52)
            a = self.whole.select(large, sticky, a)
        mode, self.mode = self.mode, "rn"
        exact = self._cast(code, a, F64)
        self.mode = mode
        return self.convert(exact, type)

    def _to_integer(self, a: Lanes, type: DType) -> Lanes:
        number = self.as_arithmetic(a)
        kind = scalar(type) if number.uniform else vector(scalar(type))
        code = "fptosi" if type.is_signed else "fptoui"
        name = f"llvm.{code}.sat.{mangled(kind)}.{mangled(number.llvm_type)}"
        self.e.declare(name, kind, number.llvm_type)
        return Lanes(self.whole, type, self.e.emit(f"call {kind} @{name}({number.llvm_type} {number.name})"), number.uniform)

    def _between_floats(self, a: Lanes, type: DType) -> Lanes:
        source = a.type
        if source == F16:
            half = self.e.emit(f"bitcast {a.llvm_type} {a.name} to {'half' if a.uniform else vector('half')}")
            kind = "half" if a.uniform else vector("half")
            single = self.e.emit(f"fpext {kind} {half} to {'float' if a.uniform else vector('float')}")
            return self.convert(Lanes(self.whole, F32, single, a.uniform), type)
        if source == BF16:
            wide = self.resize(self.whole.bits(a, U16), U32, False)
            return self.convert(self.whole.bits(self.whole.shift("shl", wide, 16), F32), type)
        if source == F32 and type == F64:
            return self._cast("fpext", a, F64)
        if source == F64 and type == F32:
            return self._cast("fptrunc", a, F32)
        if source == F64:
            return self.convert(self._odd_single(a), type)
        if source == F32 and type in (F16, BF16):
            return self._narrow(a, type)
        raise TypeError(f"no conversion from {source} to {type}")

    def _odd_single(self, a: Lanes) -> Lanes:
        """f64 -> f32 rounded to odd, so that a second rounding to at most 22 bits is as good as the only one."""
        mode, self.mode = self.mode, "rn"
        near = self._cast("fptrunc", a, F32)
        back = self.whole.abs(self._cast("fpext", near, F64))
        self.mode = mode
        size = self.whole.abs(a)
        bits = self.whole.bits(near, U32)
        even = self.whole.compare("eq", self.whole.binary("and", bits, 1), 0)
        up = self.whole.binary("and", even, self.whole.compare("lt", back, size))
        down = self.whole.binary("and", even, self.whole.compare("gt", back, size))
        moved = self.whole.select(up, self.whole.binary("add", bits, 1), bits)
        moved = self.whole.select(down, self.whole.binary("sub", bits, 1), moved)
        return self.whole.bits(moved, F32)

    def _narrow(self, a: Lanes, type: DType) -> Lanes:
        near = self._nearest_half(a) if type == F16 else self._nearest_bfloat(a)
        if self.mode == "rn":
            return near
        mode, self.mode = self.mode, "rn"
        back, size = self.whole.abs(self.convert(near, F32)), self.whole.abs(a)
        self.mode = mode
        bits = self.whole.bits(near, U16)
        toward = self.whole.select(self.whole.compare("gt", back, size), self.whole.binary("sub", bits, 1), bits)
        away = self.whole.select(self.whole.compare("lt", back, size), self.whole.binary("add", bits, 1), bits)
        negative = self.whole.compare("lt", a, 0.0)
        below, above = (away, toward) if mode == "rm" else (toward, away)
        chosen = toward if mode == "rz" else self.whole.select(negative, below, above)
        return self.whole.bits(chosen, type)

    def _nearest_half(self, a: Lanes) -> Lanes:
        kind, short = ("half", "i16") if a.uniform else (vector("half"), vector("i16"))
        half = self.e.emit(f"fptrunc {a.llvm_type} {a.name} to {kind}")
        return Lanes(self.whole, F16, self.e.emit(f"bitcast {kind} {half} to {short}"), a.uniform)

    def _nearest_bfloat(self, a: Lanes) -> Lanes:
        bits = self.whole.bits(a, U32)
        tie = self.whole.binary("and", self.whole.shift("lshr", bits, 16), 1)
        moved = self.whole.binary("add", self.whole.binary("add", bits, 0x7FFF), tie)
        name, uniform = self.apply("fcmp uno", a, a)
        chosen = self.whole.select(Lanes(self.whole, PRED, name, uniform), self.whole.const(0x7FFF0000, U32), moved)
        return self.whole.bits(self.resize(self.whole.shift("lshr", chosen, 16), U16, False), BF16)


def mangled(kind: str) -> str:
    """How LLVM spells a type inside an intrinsic's name."""
    names = {"float": "f32", "double": "f64", "half": "f16"}
    if kind.startswith("<"):
        count, _, element = kind[1:-1].partition(" x ")
        return f"v{count}{names.get(element, element)}"
    return names.get(kind, kind)
