"""Floats as LLVM IR, rounded once and as asked: operations in the four directions, conversions between every pair of types.

No fast-math flag is ever written, so LLVM neither reorders nor contracts. f16 and bf16 are computed in f32, which is exact
after the second rounding for + - * / and sqrt (24 >= 2*11+2 bits); fma goes through f64 rounded to odd, which no later
rounding can spoil (Boldo and Melquiond, 2008)."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.emulator.bits import Bits, mangled
from ptxgen.emulator.emitter import scalar, vector
from ptxgen.emulator.values import Lanes
from ptxgen.isa.algebra import Number
from ptxgen.types import BF16, F16, F32, F64, PRED, U16, U32, U64, DType

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_DIRECTIONS = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}  # the numbers of llvm.set.rounding


class Rounding(Bits):
    """Floats. `mode` is the direction in which operations round: rn, rz, rm (down) or rp (up)."""

    mode = "rn"

    def as_arithmetic(self, a: Lanes) -> Lanes:
        """f16 and bf16 as the f32 of the same value."""
        return self.convert(a, F32) if a.type in (F16, BF16) else a

    def from_arithmetic(self, a: Lanes, type: DType) -> Lanes:
        """The inverse of `as_arithmetic`."""
        return a if a.type == type else self.convert(a, type)

    def binary(self, operation: str, a: Number, b: object) -> Lanes:
        left = self.like(a, U32)
        if left.type.is_float and operation in _FLOAT:
            return self.float_operation(_FLOAT[operation], left, self.like(b, left.type))
        return super().binary(operation, left, b)

    def compare(self, operation: str, a: Lanes, other: object) -> Lanes:
        if not a.type.is_float:
            return super().compare(operation, a, other)
        condition = "one" if operation == "ne" else "o" + operation
        return self.apply(f"fcmp {condition}", self.as_arithmetic(a), self.as_arithmetic(self.like(other, a.type)), type=PRED)

    def float_operation(self, instruction: str, a: Lanes, b: Lanes) -> Lanes:
        """fadd, fsub, fmul or fdiv, rounded in the mode that rules."""
        x, y = self.as_arithmetic(a), self.as_arithmetic(b)
        nearest = self.mode == "rn"
        return self.from_arithmetic(
            self.apply(instruction, x, y) if nearest else self.directed(instruction, x.type, x, y), a.type
        )

    def fma(self, a: Number, b: Number, c: Number) -> Lanes:
        x, y, z = (self.like(o, F32) for o in (a, b, c))
        if x.type in (F16, BF16):
            return self._narrow_fma(x, y, z)
        return self.intrinsic("llvm.fma", x, y, z) if self.mode == "rn" else self.directed("fma", x.type, x, y, z)

    def sqrt(self, a: Number) -> Lanes:
        value = self.like(a, F32)
        x = self.as_arithmetic(value)
        root = self.intrinsic("llvm.sqrt", x) if self.mode == "rn" else self.directed("sqrt", x.type, x)
        return self.from_arithmetic(root, value.type)

    def rounded(self, mode: str, work: Callable[..., Number], *operands: Number) -> Lanes:
        before, self.mode = self.mode, mode or "rn"
        if self.mode not in _DIRECTIONS:
            raise ValueError(f"no rounding {mode}; there are {', '.join(_DIRECTIONS)}")
        try:
            return self.like(work(*operands), F32)
        finally:
            self.mode = before

    def directed(self, operation: str, result: DType, *operands: Lanes) -> Lanes:
        """An operation in a function of its own that sets the rounding direction, and sets it back."""
        uniform, names, kind = self.together(operands)
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
        call = f"call {target} @{function}({', '.join(f'{kind} {n}' for n in names)})"
        return Lanes(self, result, self.e.emit(call), uniform)

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
        bits = self.bits(total, U64)
        grows = self.compare("eq", self.compare("gt", lost, 0.0), self.compare("gt", total, 0.0))
        nearer = self.select(grows, self.binary("add", bits, 1), self.binary("sub", bits, 1))
        even = self.compare("eq", self.binary("and", bits, 1), 0)
        inexact = self.binary("and", self.compare("ne", lost, 0.0), even)
        odd = self.bits(self.select(inexact, nearer, bits), F64)
        self.mode = mode
        return self.convert(odd, a.type)

    def convert(self, a: Number, type: DType) -> Lanes:
        value = self.like(a, type)
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
            return self.directed(code, type, a)
        target = scalar(type) if a.uniform else vector(scalar(type))
        return Lanes(self, type, self.e.emit(f"{code} {a.llvm_type} {a.name} to {target}"), a.uniform)

    def _from_integer(self, a: Lanes, type: DType) -> Lanes:
        code = "sitofp" if a.type.is_signed else "uitofp"
        if type in (F32, F64):
            return self._cast(code, a, type)
        if a.type.bits == 64:
            # 53 bits and a sticky one are all that a narrow result can tell apart, and fit a double.
            low = self.compare("ne", self.binary("and", a, 0x7FF), 0)
            cut = self.binary("and", a, ~0x7FF)
            sticky = self.binary("or", cut, self.select(low, self.const(0x800, a.type), self.const(0, a.type)))
            large = self.compare("ge", self.abs(a) if a.type.is_signed else a, 1 << 52)
            a = self.select(large, sticky, a)
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
        return Lanes(self, type, self.e.emit(f"call {kind} @{name}({number.llvm_type} {number.name})"), number.uniform)

    def _between_floats(self, a: Lanes, type: DType) -> Lanes:
        source = a.type
        if source == F16:
            half = self.e.emit(f"bitcast {a.llvm_type} {a.name} to {'half' if a.uniform else vector('half')}")
            kind = "half" if a.uniform else vector("half")
            single = self.e.emit(f"fpext {kind} {half} to {'float' if a.uniform else vector('float')}")
            return self.convert(Lanes(self, F32, single, a.uniform), type)
        if source == BF16:
            wide = self.resize(self.bits(a, U16), U32, False)
            return self.convert(self.bits(self.shift("shl", wide, 16), F32), type)
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
        back = self.abs(self._cast("fpext", near, F64))
        self.mode = mode
        size = self.abs(a)
        bits = self.bits(near, U32)
        even = self.compare("eq", self.binary("and", bits, 1), 0)
        up = self.binary("and", even, self.compare("lt", back, size))
        down = self.binary("and", even, self.compare("gt", back, size))
        moved = self.select(up, self.binary("add", bits, 1), bits)
        moved = self.select(down, self.binary("sub", bits, 1), moved)
        return self.bits(moved, F32)

    def _narrow(self, a: Lanes, type: DType) -> Lanes:
        near = self._nearest_half(a) if type == F16 else self._nearest_bfloat(a)
        if self.mode == "rn":
            return near
        mode, self.mode = self.mode, "rn"
        back, size = self.abs(self.convert(near, F32)), self.abs(a)
        self.mode = mode
        bits = self.bits(near, U16)
        toward = self.select(self.compare("gt", back, size), self.binary("sub", bits, 1), bits)
        away = self.select(self.compare("lt", back, size), self.binary("add", bits, 1), bits)
        negative = self.compare("lt", a, 0.0)
        below, above = (away, toward) if mode == "rm" else (toward, away)
        chosen = toward if mode == "rz" else self.select(negative, below, above)
        return self.bits(chosen, type)

    def _nearest_half(self, a: Lanes) -> Lanes:
        kind, short = ("half", "i16") if a.uniform else (vector("half"), vector("i16"))
        half = self.e.emit(f"fptrunc {a.llvm_type} {a.name} to {kind}")
        return Lanes(self, F16, self.e.emit(f"bitcast {kind} {half} to {short}"), a.uniform)

    def _nearest_bfloat(self, a: Lanes) -> Lanes:
        bits = self.bits(a, U32)
        tie = self.binary("and", self.shift("lshr", bits, 16), 1)
        moved = self.binary("add", self.binary("add", bits, 0x7FFF), tie)
        chosen = self.select(self.apply("fcmp uno", a, a, type=PRED), self.const(0x7FFF0000, U32), moved)
        return self.bits(self.resize(self.shift("lshr", chosen, 16), U16, False), BF16)
