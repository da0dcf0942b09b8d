"""What the runtime's functions are written with: LLVM's instructions as operators, its blocks as `with`.

A `Value` is a value of the function that is being built, and every number is unsigned; the other side of an operator may be a
Python number of its type. Like emitter.py this writes text: llvmlite's own builder takes ten times as long, which each process
would wait for before its first kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ptxgen.target import WARP_SIZE

VECTOR_ALIGNMENT = 64
"""Bytes. What every vector in memory is aligned to at least."""

_MASK = f"<{WARP_SIZE} x i1>"


def _element(type: str) -> str:
    """The element of a vector, or the type itself."""
    return type[1:-1].partition(" x ")[2] if type.startswith("<") else type


def _like(type: str, element: str) -> str:
    """As many of another element as the type has."""
    return f"{type.partition(' x ')[0]} x {element}>" if type.startswith("<") else element


class Value:
    """A value of the function in progress: its LLVM type and what LLVM calls it."""

    __slots__ = ("builder", "name", "type")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Builder, type: str, name: str) -> None:
        self.builder, self.type, self.name = builder, type, name

    def __bool__(self) -> bool:
        raise TypeError("a value has no truth value while the function is being built: use when()")

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    def _operation(self, opcode: str, other: Value | int) -> Value:
        return self.builder.emit(self.type, f"{opcode} {self}, {self.builder.spelt(other, self.type)}")

    def _compare(self, condition: str, other: object) -> Value:
        right = self.builder.spelt(other, self.type)
        return self.builder.emit(_like(self.type, "i1"), f"icmp {condition} {self}, {right}")

    def __add__(self, other: Value | int) -> Value:
        return self._operation("add", other)

    def __sub__(self, other: Value | int) -> Value:
        return self._operation("sub", other)

    def __mul__(self, other: Value | int) -> Value:
        return self._operation("mul", other)

    def __floordiv__(self, other: Value | int) -> Value:
        return self._operation("udiv", other)

    def __mod__(self, other: Value | int) -> Value:
        return self._operation("urem", other)

    def __and__(self, other: Value | int) -> Value:
        return self._operation("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._operation("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._operation("xor", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._operation("shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._operation("lshr", other)

    def __invert__(self) -> Value:
        return self._operation("xor", -1)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("ne", other)

    def __lt__(self, other: Value | int) -> Value:
        return self._compare("ult", other)

    def __le__(self, other: Value | int) -> Value:
        return self._compare("ule", other)

    def __gt__(self, other: Value | int) -> Value:
        return self._compare("ugt", other)

    def __ge__(self, other: Value | int) -> Value:
        return self._compare("uge", other)

    def signed_below(self, other: Value | int) -> Value:
        """`<` of signed numbers."""
        return self._compare("slt", other)

    def resized(self, type: str) -> Value:
        """Truncated or extended by zeros to another integer type, a number or a vector."""
        if type == self.type:
            return self
        narrower = int(_element(type)[1:]) < int(_element(self.type)[1:])
        return self.builder.emit(type, f"{'trunc' if narrower else 'zext'} {self} to {type}")

    def truths(self) -> Value:
        """The bits of a mask of lanes (i32) as a vector of 32 truths."""
        return self.builder.emit(_MASK, f"bitcast {self} to {_MASK}")

    def mask(self) -> Value:
        """A vector of 32 truths as the bits of a mask of lanes."""
        return self.builder.emit("i32", f"bitcast {self} to i32")

    def element(self, lane: Value | int) -> Value:
        """What a vector holds for a lane."""
        return self.builder.emit(_element(self.type), f"extractelement {self}, i32 {self.builder.spelt(lane, 'i32')}")

    def with_element(self, lane: Value | int, value: Value) -> Value:
        """The vector with another element."""
        return self.builder.emit(self.type, f"insertelement {self}, {value}, i32 {self.builder.spelt(lane, 'i32')}")

    def shuffled(self, order: Sequence[int], other: Value | None = None) -> Value:
        """The elements of this vector, and of `other` behind it, in an order known now."""
        type = f"<{len(order)} x {_element(self.type)}>"
        second = f"{self.type} poison" if other is None else str(other)
        return self.builder.emit(type, f"shufflevector {self}, {second}, {self.builder.vector(order, 'i32')}")

    def splat(self, count: int = WARP_SIZE) -> Value:
        """A vector that has this number in each lane."""
        return self.builder.undefined(f"<{count} x {self.type}>").with_element(0, self).shuffled([0] * count)

    def select(self, one: Value, other: Value | int) -> Value:
        """`one` where this is true, else `other`."""
        return self.builder.emit(one.type, f"select {self}, {one}, {one.type} {self.builder.spelt(other, one.type)}")

    def member(self, number: int, type: str) -> Value:
        """What a structure of values holds at a number."""
        return self.builder.emit(type, f"extractvalue {self}, {number}")

    def at(self, offset: Value | int, type: str = "i8") -> Value:
        """The address `offset` (i64) elements of a type behind this one."""
        return self.builder.emit("ptr", f"getelementptr {type}, {self}, i64 {self.builder.spelt(offset, 'i64')}")

    def as_pointer(self) -> Value:
        """An address that is held as a number."""
        return self.builder.emit("ptr", f"inttoptr {self} to ptr")

    def load(self, type: str, align: int = 0, *, volatile: bool = False) -> Value:
        """What lies at this address; with `volatile` as it is, not put together by LLVM from what was stored there."""
        text = f"load {'volatile ' if volatile else ''}{type}, {self}"
        return self.builder.emit(type, text + (f", align {align}" if align else ""))

    def store(self, value: Value | int, type: str = "i32", align: int = 0) -> None:
        """Put a value, or a number of a type, at this address."""
        stored = str(value) if isinstance(value, Value) else f"{type} {self.builder.spelt(value, type)}"
        self.builder.do(f"store {stored}, {self}" + (f", align {align}" if align else ""))


class Loop:
    """The loop whose body is being built."""

    def __init__(self, builder: Builder, following: str, after: str) -> None:
        self._builder, self._following, self._after = builder, following, after

    def go_on(self) -> None:
        """Leave this turn for the next."""
        self._builder.end(f"br label %{self._following}")

    def stop(self) -> None:
        """Leave the loop."""
        self._builder.end(f"br label %{self._after}")


@dataclass(frozen=True)
class RuntimeFunction:
    """`arguments` maps names to types. The functions of one `part` are compiled together, when a kernel first calls one of
    them. `is_hot`: it is worth optimising. Calling it while another function is built makes a call."""

    name: str
    result: str
    arguments: Mapping[str, str]
    part: str
    body: Callable[..., None]
    is_hot: bool = False

    def __call__(self, b: Builder, *arguments: Value | int) -> Value:
        return b.call(self, *arguments)


class Builder:
    """A function in progress."""

    def __init__(self, function: RuntimeFunction) -> None:
        self.function = function
        self.called: dict[str, RuntimeFunction] = {}
        self.intrinsics: set[str] = set()
        self._allocas: list[str] = []
        self._lines: list[str] = []
        self._names = 0
        self._open = True

    def text(self) -> str:
        """The finished function. A block that nothing ends cannot be reached, or is the end of a function without result."""
        if self._open:
            self.end("ret void" if self.function.result == "void" else "unreachable")
        arguments = ", ".join(f"{type} %{name}" for name, type in self.function.arguments.items())
        head = f"define {self.function.result} @{self.function.name}({arguments}) {{"
        return "\n".join([head, *self._allocas, *self._lines, "}\n"])

    # Instructions
    def emit(self, type: str, text: str) -> Value:
        """An instruction that has a result."""
        self._names += 1
        self._lines.append(f"  %.{self._names} = {text}")
        return Value(self, type, f"%.{self._names}")

    def do(self, text: str) -> None:
        """An instruction that has none."""
        self._lines.append(f"  {text}")

    def end(self, text: str) -> None:
        """An instruction that ends its block."""
        self.do(text)
        self._open = False

    def _label(self, name: str) -> str:
        self._names += 1
        return f"{name}.{self._names}"

    def _begin(self, label: str) -> None:
        """A new block, which the one before goes on to if nothing ended it."""
        if self._open:
            self.do(f"br label %{label}")
        self._lines.append(f"{label}:")
        self._open = True

    # Constants
    def spelt(self, value: object, type: str) -> str:
        """How LLVM spells a Value, or a number in each lane of a type."""
        if isinstance(value, Value):
            return value.name
        number = int(value)  # type: ignore[call-overload]  # an enum's own spelling may be its name
        return f"splat ({_element(type)} {number})" if type.startswith("<") else str(number)

    def number(self, value: int, type: str = "i32") -> Value:
        """A constant."""
        return Value(self, type, self.spelt(value, type))

    def vector(self, values: Sequence[int], element: str) -> Value:
        """A constant vector."""
        return Value(self, f"<{len(values)} x {element}>", f"<{', '.join(f'{element} {v}' for v in values)}>")

    def undefined(self, type: str) -> Value:
        """Any value of a type."""
        return Value(self, type, "poison")

    def null(self) -> Value:
        """No address."""
        return Value(self, "ptr", "null")

    # Memory
    def memory(self, type: str, count: int = 1, align: int = 16) -> Value:
        """Memory on the stack, made once a call."""
        self._names += 1
        self._allocas.append(f"  %.{self._names} = alloca {type}, i32 {count}, align {align}")
        return Value(self, "ptr", f"%.{self._names}")

    def table(self, vector: Value) -> Value:
        """The address of a copy of a vector, whose elements can be asked for by a number that is not known now."""
        memory = self.memory(vector.type, align=VECTOR_ALIGNMENT)
        memory.store(vector, align=VECTOR_ALIGNMENT)
        return memory

    def entry(self, table: Value, lane: Value, element: str) -> Value:
        """An element of a `table`."""
        return table.at(lane.resized("i64"), element).load(element)

    def copy_structure(self, structure: type[ctypes.Structure], to: Value, start: Value) -> None:
        """Copy a structure between addresses that are multiples of 4."""
        to.store(start.load(f"i{8 * ctypes.sizeof(structure)}", 4), align=4)

    def fill(self, address: Value, byte: int, size: Value | int) -> None:
        """Set bytes."""
        self.intrinsic("llvm.memset.p0.i64", "void", address, self.number(byte, "i8"), self._size(size), self.number(0, "i1"))

    def copy(self, to: Value, start: Value, size: Value | int) -> None:
        """Copy bytes between places that may overlap."""
        self.intrinsic("llvm.memmove.p0.p0.i64", "void", to, start, self._size(size), self.number(0, "i1"))

    def _size(self, size: Value | int) -> Value:
        return size if isinstance(size, Value) else self.number(size, "i64")

    # Calls
    def call(self, function: RuntimeFunction, *arguments: Value | int) -> Value:
        """Call another function of the runtime."""
        self.called[function.name] = function
        types = function.arguments.values()
        spelt = (f"{type} {self.spelt(a, type)}" for type, a in zip(types, arguments, strict=True))
        return self._call(function.result, f"@{function.name}", ", ".join(spelt))

    def call_address(self, address: Value, result: str, *arguments: Value) -> Value:
        """Call the function at an address."""
        return self._call(result, address.as_pointer().name, ", ".join(map(str, arguments)))

    def intrinsic(self, name: str, result: str, *arguments: Value) -> Value:
        """Call an intrinsic of LLVM by its full name."""
        self.intrinsics.add(f"declare {result} @{name}({', '.join(a.type for a in arguments)})")
        return self._call(result, f"@{name}", ", ".join(map(str, arguments)))

    def _call(self, result: str, target: str, arguments: str) -> Value:
        text = f"call {result} {target}({arguments})"
        if result != "void":
            return self.emit(result, text)
        self.do(text)
        return Value(self, result, "")

    def is_null(self, pointer: Value) -> Value:
        """Whether an address is null."""
        return pointer == self.null()

    def first_lane(self, mask: Value) -> Value:
        """The number of the lowest bit that is set; there is one."""
        return self.intrinsic("llvm.cttz.i32", "i32", mask, self.number(1, "i1"))

    def population(self, mask: Value) -> Value:
        """How many bits are set."""
        return self.intrinsic("llvm.ctpop.i32", "i32", mask)

    # Control flow
    def ret(self, value: Value | int | None = None) -> None:
        """Leave the function."""
        type = self.function.result
        self.end("ret void" if value is None else f"ret {type} {self.spelt(value, type)}")

    def ret_several(self, values: Sequence[Value]) -> None:
        """Leave the function with a structure of values, or with the only one."""
        result = self.undefined(self.function.result)
        for i, value in enumerate(values):
            result = self.emit(result.type, f"insertvalue {result}, {value}, {i}") if len(values) > 1 else value
        self.ret(result)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """What is built inside runs if the condition holds."""
        then, after = self._label("then"), self._label("after")
        self.end(f"br {condition}, label %{then}, label %{after}")
        self._begin(then)
        yield
        self._begin(after)

    @contextmanager
    def loop(self, count: Value | None = None) -> Iterator[tuple[Value, Loop]]:
        """What is built inside runs for 0, 1, ... up to `count` (i64), or until it stops the loop."""
        head, body, following, after = (self._label(n) for n in ("head", "body", "next", "after"))
        index = self.memory("i64")
        index.store(0, "i64")
        self._begin(head)
        i = index.load("i64")
        if count is not None:
            self.end(f"br {i < count}, label %{body}, label %{after}")
        self._begin(body)
        yield i, Loop(self, following, after)
        self._begin(following)
        index.store(i + 1)
        self.end(f"br label %{head}")
        self._begin(after)

    @contextmanager
    def each_lane(self, mask: Value) -> Iterator[tuple[Value, Loop]]:
        """What is built inside runs for each lane (i32) whose bit is set, in ascending order."""
        left = self.memory("i32")
        left.store(mask)
        with self.loop() as (_, loop):
            rest = left.load("i32")
            with self.when(rest == 0):
                loop.stop()
            left.store(rest & (rest - 1))
            yield self.first_lane(rest), loop


def define(function: RuntimeFunction) -> Builder:
    """Build a function."""
    b = Builder(function)
    function.body(b, *(Value(b, type, f"%{name}") for name, type in function.arguments.items()))
    return b
