"""Writes LLVM IR as text: fresh names, the body of the function in progress, declarations and out-of-line functions on demand.
Text, because building it is many times cheaper than building llvmlite objects and LLVM parses it in microseconds a line."""

from __future__ import annotations

import struct

from ptxgen.emulator.runtime.builder import RuntimeFunction
from ptxgen.target import WARP_SIZE
from ptxgen.types import DType, Kind


def scalar(type: DType) -> str:
    """The LLVM type of one lane. f16, bf16 and packed pairs are integers: how LLVM passes its own `half` varies by host."""
    if type.kind is Kind.PREDICATE:
        return "i1"
    if type.kind is Kind.FLOAT and type.lanes == 1 and type.name in ("f32", "f64"):
        return "float" if type.bits == 32 else "double"
    return f"i{type.bits}"


def vector(element: str) -> str:
    """The LLVM type of an element a lane."""
    return f"<{WARP_SIZE} x {element}>"


def literal(value: float, type: DType) -> str:
    """A constant of one lane as LLVM spells it."""
    if type.kind is Kind.PREDICATE:
        return "true" if value else "false"
    if scalar(type) in ("float", "double"):
        number = float(value)
        if type.bits == 32:
            try:
                number = struct.unpack("<f", struct.pack("<f", number))[0]
            except OverflowError:
                number = float("inf") if number > 0 else float("-inf")
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    bits = int(value) & ((1 << type.bits) - 1)
    return str(bits - (1 << type.bits) if bits >> (type.bits - 1) else bits)


class Emitter:
    """One LLVM module in progress, and the body of one function of it."""

    def __init__(self) -> None:
        self.body: list[str] = []
        self.allocas: list[str] = []
        self.declarations: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.runtime: dict[str, RuntimeFunction] = {}
        self._names = 0

    def fresh(self, stem: str = "v") -> str:
        """A name that nothing in the function has."""
        self._names += 1
        return f"{stem}{self._names}"

    def emit(self, text: str) -> str:
        """Append an instruction that has a result; returns the result's name."""
        self._names += 1
        name = f"%v{self._names}"
        self.body.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction that has no result."""
        self.body.append(f"  {text}")

    def label(self, name: str) -> None:
        """Begin a block."""
        self.body.append(f"{name}:")

    def alloca(self, type: str, count: int = 1) -> str:
        """Stack memory of the function in progress, made once at its start, aligned for a vector."""
        name = f"%{self.fresh('m')}"
        self.allocas.append(f"  {name} = alloca {type}, i32 {count}, align 64")
        return name

    def declare(self, name: str, result: str, *arguments: str, attributes: str = "") -> str:
        """Name an intrinsic or outside function; returns the name to call."""
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(arguments)}) {attributes}".rstrip())
        return name

    def call(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic with (type, value) arguments."""
        self.declare(name, result, *(t for t, _ in arguments))
        return self.emit(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")

    def call_runtime(self, function: RuntimeFunction, *arguments: str | int) -> str:
        """Call a function of the runtime, which the kernel is then linked with; returns the result's name, if it has one."""
        self.runtime[function.name] = function
        types = function.arguments.values()
        self.declare(function.name, function.result, *types)
        values = ", ".join(f"{type} {value}" for type, value in zip(types, arguments, strict=True))
        call = f"call {function.result} @{function.name}({values})"
        if function.result != "void":
            return self.emit(call)
        self.do(call)
        return ""

    def module_text(self) -> str:
        """The module as LLVM reads it."""
        return "\n".join([*self.declarations.values(), *self.functions.values()]) + "\n"
