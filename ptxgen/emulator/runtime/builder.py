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


class IrValue:
    """A value of the function in progress: its LLVM type and what LLVM calls it."""

    __slots__ = ("builder", "name", "type")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Builder, type: str, name: str) -> None:
        self.builder, self.type, self.name = builder, type, name

    def __bool__(self) -> bool:
        raise TypeError("a value has no truth value while the function is being built: use when()")

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    def _operation(self, opcode: str, other: IrValue | int) -> IrValue:
        return self.builder.emit(self.type, f"{opcode} {self}, {self.builder.spelt(other, self.type)}")

    def _compare(self, condition: str, other: object) -> IrValue:
        right = self.builder.spelt(other, self.type)
        return self.builder.emit(_like(self.type, "i1"), f"icmp {condition} {self}, {right}")

    def __add__(self, other: IrValue | int) -> IrValue:
        return self._operation("add", other)

    def __sub__(self, other: IrValue | int) -> IrValue:
        return self._operation("sub", other)

    def __mul__(self, other: IrValue | int) -> IrValue:
        return self._operation("mul", other)

    def __floordiv__(self, other: IrValue | int) -> IrValue:
        return self._operation("udiv", other)

    def __mod__(self, other: IrValue | int) -> IrValue:
        return self._operation("urem", other)

    def __and__(self, other: IrValue | int) -> IrValue:
        return self._operation("and", other)

    def __or__(self, other: IrValue | int) -> IrValue:
        return self._operation("or", other)

    def __xor__(self, other: IrValue | int) -> IrValue:
        return self._operation("xor", other)

    def __lshift__(self, other: IrValue | int) -> IrValue:
        return self._operation("shl", other)

    def __rshift__(self, other: IrValue | int) -> IrValue:
        return self._operation("lshr", other)

    def __invert__(self) -> IrValue:
        return self._operation("xor", -1)

    def __eq__(self, other: object) -> IrValue:  # type: ignore[override]
        return self._compare("eq", other)

    def __ne__(self, other: object) -> IrValue:  # type: ignore[override]
        return self._compare("ne", other)

    def __lt__(self, other: IrValue | int) -> IrValue:
        return self._compare("ult", other)

    def __le__(self, other: IrValue | int) -> IrValue:
        return self._compare("ule", other)

    def __gt__(self, other: IrValue | int) -> IrValue:
        return self._compare("ugt", other)

    def __ge__(self, other: IrValue | int) -> IrValue:
        return self._compare("uge", other)

    def signed_below(self, other: IrValue | int) -> IrValue:
        """`<` of signed numbers."""
        return self._compare("slt", other)

    def resized(self, type: str) -> IrValue:
        """Truncated or extended by zeros to another integer type, a number or a vector."""
        if type == self.type:
            return self
        narrower = int(_element(type)[1:]) < int(_element(self.type)[1:])
        return self.builder.emit(type, f"{'trunc' if narrower else 'zext'} {self} to {type}")

    def truths(self) -> IrValue:
        """The bits of a mask of lanes (i32) as a vector of 32 truths."""
        return self.builder.emit(_MASK, f"bitcast {self} to {_MASK}")

    def mask(self) -> IrValue:
        """A vector of 32 truths as the bits of a mask of lanes."""
        return self.builder.emit("i32", f"bitcast {self} to i32")

    def element(self, lane: IrValue | int) -> IrValue:
        """What a vector holds for a lane."""
        return self.builder.emit(_element(self.type), f"extractelement {self}, i32 {self.builder.spelt(lane, 'i32')}")

    def with_element(self, lane: IrValue | int, value: IrValue) -> IrValue:
        """The vector with another element."""
        return self.builder.emit(self.type, f"insertelement {self}, {value}, i32 {self.builder.spelt(lane, 'i32')}")

    def shuffled(self, order: Sequence[int], other: IrValue | None = None) -> IrValue:
        """The elements of this vector, and of `other` behind it, in an order known now."""
        type = f"<{len(order)} x {_element(self.type)}>"
        second = f"{self.type} poison" if other is None else str(other)
        return self.builder.emit(type, f"shufflevector {self}, {second}, {self.builder.vector(order, 'i32')}")

    def splat(self, count: int = WARP_SIZE) -> IrValue:
        """A vector that has this number in each lane."""
        return self.builder.undefined(f"<{count} x {self.type}>").with_element(0, self).shuffled([0] * count)

    def select(self, one: IrValue, other: IrValue | int) -> IrValue:
        """`one` where this is true, else `other`."""
        return self.builder.emit(one.type, f"select {self}, {one}, {one.type} {self.builder.spelt(other, one.type)}")

    def member(self, number: int, type: str) -> IrValue:
        """What a structure of values holds at a number."""
        return self.builder.emit(type, f"extractvalue {self}, {number}")

    def at(self, offset: IrValue | int, type: str = "i8") -> IrValue:
        """The address `offset` (i64) elements of a type behind this one."""
        return self.builder.emit("ptr", f"getelementptr {type}, {self}, i64 {self.builder.spelt(offset, 'i64')}")

    def as_pointer(self) -> IrValue:
        """An address that is held as a number."""
        return self.builder.emit("ptr", f"inttoptr {self} to ptr")

    def load(self, type: str, align: int = 0, *, volatile: bool = False) -> IrValue:
        """What lies at this address; with `volatile` as it is, not put together by LLVM from what was stored there."""
        text = f"load {'volatile ' if volatile else ''}{type}, {self}"
        return self.builder.emit(type, text + (f", align {align}" if align else ""))

    def store(self, value: IrValue | int, type: str = "i32", align: int = 0) -> None:
        """Put a value, or a number of a type, at this address."""
        stored = str(value) if isinstance(value, IrValue) else f"{type} {self.builder.spelt(value, type)}"
        self.builder.do(f"store {stored}, {self}" + (f", align {align}" if align else ""))


class IrLoop:
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

    def __call__(self, b: Builder, *arguments: IrValue | int) -> IrValue:
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
    def emit(self, type: str, text: str) -> IrValue:
        """An instruction that has a result."""
        self._names += 1
        self._lines.append(f"  %.{self._names} = {text}")
        return IrValue(self, type, f"%.{self._names}")

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
        if isinstance(value, IrValue):
            return value.name
        number = int(value)  # type: ignore[call-overload]  # an enum's own spelling may be its name
        return f"splat ({_element(type)} {number})" if type.startswith("<") else str(number)

    def number(self, value: int, type: str = "i32") -> IrValue:
        """A constant."""
        return IrValue(self, type, self.spelt(value, type))

    def vector(self, values: Sequence[int], element: str) -> IrValue:
        """A constant vector."""
        return IrValue(self, f"<{len(values)} x {element}>", f"<{', '.join(f'{element} {v}' for v in values)}>")

    def undefined(self, type: str) -> IrValue:
        """Any value of a type."""
        return IrValue(self, type, "poison")

    def null(self) -> IrValue:
        """No address."""
        return IrValue(self, "ptr", "null")

    # Memory
    def memory(self, type: str, count: int = 1, align: int = 16) -> IrValue:
        """Memory on the stack, made once a call."""
        self._names += 1
        self._allocas.append(f"  %.{self._names} = alloca {type}, i32 {count}, align {align}")
        return IrValue(self, "ptr", f"%.{self._names}")

    def table(self, vector: IrValue) -> IrValue:
        """The address of a copy of a vector, whose elements can be asked for by a number that is not known now."""
        memory = self.memory(vector.type, align=VECTOR_ALIGNMENT)
        memory.store(vector, align=VECTOR_ALIGNMENT)
        return memory

    def entry(self, table: IrValue, lane: IrValue, element: str) -> IrValue:
        """An element of a `table`."""
        return table.at(lane.resized("i64"), element).load(element)

    def copy_structure(self, structure: type[ctypes.Structure], to: IrValue, start: IrValue) -> None:
        """Copy a structure between addresses that are multiples of 4."""
        to.store(start.load(f"i{8 * ctypes.sizeof(structure)}", 4), align=4)

    def fill(self, address: IrValue, byte: int, size: IrValue | int) -> None:
        """Set bytes."""
        self.intrinsic("llvm.memset.p0.i64", "void", address, self.number(byte, "i8"), self._size(size), self.number(0, "i1"))

    def copy(self, to: IrValue, start: IrValue, size: IrValue | int) -> None:
        """Copy bytes between places that may overlap."""
        self.intrinsic("llvm.memmove.p0.p0.i64", "void", to, start, self._size(size), self.number(0, "i1"))

    def _size(self, size: IrValue | int) -> IrValue:
        return size if isinstance(size, IrValue) else self.number(size, "i64")

    # Calls
    def call(self, function: RuntimeFunction, *arguments: IrValue | int) -> IrValue:
        """Call another function of the runtime."""
        self.called[function.name] = function
        types = function.arguments.values()
        spelt = (f"{type} {self.spelt(a, type)}" for type, a in zip(types, arguments, strict=True))
        return self._call(function.result, f"@{function.name}", ", ".join(spelt))

    def call_address(self, address: IrValue, result: str, *arguments: IrValue) -> IrValue:
        """Call the function at an address."""
        return self._call(result, address.as_pointer().name, ", ".join(map(str, arguments)))

    def intrinsic(self, name: str, result: str, *arguments: IrValue) -> IrValue:
        """Call an intrinsic of LLVM by its full name."""
        self.intrinsics.add(f"declare {result} @{name}({', '.join(a.type for a in arguments)})")
        return self._call(result, f"@{name}", ", ".join(map(str, arguments)))

    def _call(self, result: str, target: str, arguments: str) -> IrValue:
        text = f"call {result} {target}({arguments})"
        if result != "void":
            return self.emit(result, text)
        self.do(text)
        return IrValue(self, result, "")

    def is_null(self, pointer: IrValue) -> IrValue:
        """Whether an address is null."""
        return pointer == self.null()

    def first_lane(self, mask: IrValue) -> IrValue:
        """The number of the lowest bit that is set; there is one."""
        return self.intrinsic("llvm.cttz.i32", "i32", mask, self.number(1, "i1"))

    def population(self, mask: IrValue) -> IrValue:
        """How many bits are set."""
        return self.intrinsic("llvm.ctpop.i32", "i32", mask)

    # Control flow
    def ret(self, value: IrValue | int | None = None) -> None:
        """Leave the function."""
        type = self.function.result
        self.end("ret void" if value is None else f"ret {type} {self.spelt(value, type)}")

    def ret_several(self, values: Sequence[IrValue]) -> None:
        """Leave the function with a structure of values, or with the only one."""
        result = self.undefined(self.function.result)
        for i, value in enumerate(values):
            result = self.emit(result.type, f"insertvalue {result}, {value}, {i}") if len(values) > 1 else value
        self.ret(result)

    @contextmanager
    def when(self, condition: IrValue) -> Iterator[None]:
        """What is built inside runs if the condition holds."""
        then, after = self._label("then"), self._label("after")
        self.end(f"br {condition}, label %{then}, label %{after}")
        self._begin(then)
        yield
        self._begin(after)

    @contextmanager
    def loop(self, count: IrValue | None = None) -> Iterator[tuple[IrValue, IrLoop]]:
        """What is built inside runs for 0, 1, ... up to `count` (i64), or until it stops the loop."""
        head, body, following, after = (self._label(n) for n in ("head", "body", "next", "after"))
        index = self.memory("i64")
        index.store(0, "i64")
        self._begin(head)
        i = index.load("i64")
        if count is not None:
            self.end(f"br {i < count}, label %{body}, label %{after}")
        self._begin(body)
        yield i, IrLoop(self, following, after)
        self._begin(following)
        index.store(i + 1)
        self.end(f"br label %{head}")
        self._begin(after)

    @contextmanager
    def each_lane(self, mask: IrValue) -> Iterator[tuple[IrValue, IrLoop]]:
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
    function.body(b, *(IrValue(b, type, f"%{name}") for name, type in function.arguments.items()))
    return b
