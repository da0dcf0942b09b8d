"""Memory as a kernel author sees it: shaped arrays in global and shared memory whose elements are loaded and stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from ptxgen.dsl.core import Core
from ptxgen.dsl.ir import DYNAMIC_SHARED, ConstantArray, SharedArray
from ptxgen.dsl.mistakes import no_element, no_index, no_size, no_vector
from ptxgen.dsl.refusals import Place, Places
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.isa.operands import Address, Register, Symbol, Vector
from ptxgen.types import B16, BF16, F16, S32, U32, U64, DType, Kind

Index = Value | int

LARGEST_ARRAY = 1 << 32
"""Elements that an array must have fewer than: an index is computed in 32 bits, and widened once, to an offset in bytes."""


@dataclass(frozen=True)
class Element(Place):
    """A place in memory, ready to be loaded or stored: `base` plus `offset` bytes in `space`."""

    space: str
    base: Register | Symbol
    offset: int
    dtype: DType
    nc: bool = False  # loads go through the read-only path

    def __str__(self) -> str:
        return f"an element in {self.space} memory ({self.dtype})"

    @property
    def address(self) -> Address:
        """As a memory operand."""
        return Address(self.base, self.offset)


@dataclass(frozen=True)
class GlobalArray(Places):
    """A pointer argument with its shape. `a[i, j]` is an element, `a.at(i, j)` an array that starts there."""

    k: Core
    name: str
    base: Value
    dtype: DType
    shape: tuple[int, ...]
    offset: int = 0  # bytes past `base`
    nc: bool = False

    def __str__(self) -> str:
        return f"the array {self.name} ({self.dtype}[{', '.join(map(str, self.shape))}])"

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Element:
        moved = self._moved(index)
        return Element("global", moved.base.register, moved.offset, self.dtype, self.nc)

    def read_only(self) -> GlobalArray:
        """The same array, whose loads go through the read-only path: it must not be written while the kernel runs."""
        return replace(self, nc=True)

    def at(self, *index: Index) -> GlobalArray:
        """The flat rest of the array, from the element at `index`: addresses computed from it share the work."""
        moved = self._moved(index)
        return GlobalArray(self.k, self.name, moved.base, self.dtype, (prod(self.shape),), moved.offset, self.nc)

    def _moved(self, index: Index | tuple[Index, ...]) -> GlobalArray:
        linear, constant = _linear(self.k, self.name, self.shape, index)
        base = self.base
        if linear is not None:
            base = self.k.op("mad_wide", linear, self.dtype.bytes, base)
        return replace(self, base=base, shape=(), offset=self.offset + constant * self.dtype.bytes)


@dataclass(frozen=True)
class PeerArrays(Places):
    """An argument of all ranks: `a[rank]` is that of one of them, an array in global memory of its device, whose address this
    device holds in `addresses`. `name`, `dtype`, `shape`: of each."""

    k: MemoryAccess
    name: str
    addresses: GlobalArray
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"the arrays of the ranks of {self.addresses.name} (each {self.dtype}[{', '.join(map(str, self.shape))}])"

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.addresses.shape[0]

    def __getitem__(self, rank: Index) -> GlobalArray:
        base = self.k.op("cvta", self.k.load(self.addresses[rank]), to="to", space="global", result=U64)
        return GlobalArray(self.k, self.name, base, self.dtype, self.shape)


@dataclass(frozen=True)
class SharedView(Places):
    """An array in shared memory, of one block."""

    k: Core
    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"an array in shared memory ({self.dtype}[{', '.join(map(str, self.shape))}])"

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Element:
        linear, constant = _linear(self.k, self.name, self.shape, index)
        offset = constant * self.dtype.bytes
        if linear is None:
            return Element("shared", Symbol(self.name), offset, self.dtype)
        base = self.k.op("mad", linear, self.dtype.bytes, self.k.symbol_address(self.name))
        return Element("shared", base.register, offset, self.dtype)

    def start(self) -> SharedPart:
        """The array as a part of itself, for addresses that are computed step by step."""
        return SharedPart(self.k, self.k.symbol_address(self.name), self.dtype)


@dataclass(frozen=True)
class SharedPart(Places):
    """The rest of an array in shared memory from some element on. `base` is an address in the shared window."""

    k: Core
    base: Value
    dtype: DType
    offset: int = 0  # bytes past `base`

    def __str__(self) -> str:
        return f"a part of an array in shared memory ({self.dtype})"

    def __getitem__(self, index: int) -> Element:
        if not isinstance(index, int) or isinstance(index, bool):
            raise no_index(_PART, index, self.k.where, "an int")
        return Element("shared", self.base.register, self.offset + index * self.dtype.bytes, self.dtype)

    def at(self, index: Index) -> SharedPart:
        """The rest from the element `index` on."""
        if isinstance(index, int) and not isinstance(index, bool):
            return replace(self, offset=self.offset + index * self.dtype.bytes)
        if not isinstance(index, Value) or index.type != U32:
            raise no_index(_PART, index, self.k.where)
        return replace(self, base=self.k.op("mad", index, self.dtype.bytes, self.base))


def _linear(k: Core, name: str, shape: tuple[int, ...], index: Index | tuple[Index, ...]) -> tuple[Value | None, int]:
    """A row-major index as a register part and a constant part, in elements."""
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) != len(shape):
        raise AuthorError(f"{name} has {len(shape)} dimensions {shape}, got {len(parts)} indices", k.where())
    total: Value | None = None
    constant = 0
    for position, (part, size) in enumerate(zip(parts, shape, strict=True)):
        stride = prod(shape[position + 1 :])
        if isinstance(part, int) and not isinstance(part, bool):
            if not 0 <= part < size:
                raise AuthorError(f"index {part} is outside dimension {position} of {name}, which has {size}", k.where())
            constant += part * stride
            continue
        if not isinstance(part, Value) or part.type != U32:
            raise no_index(name, part, k.where)
        if total is None:
            total = part if stride == 1 else part * stride
        else:
            total = total + part if stride == 1 else k.op("mad", part, stride, total)
    return total, constant


_PART = "a part of an array in shared memory"


class MemoryAccess(Core):
    """The loads and stores of KernelBuilder."""

    def load(self, element: Element, dtype: DType | None = None, *, nc: bool = False, **hints: str) -> Value:
        """Load the element, seen as `dtype` if given (its address must suit it). u8 and u16 arrive as u32, s8 and s16 as s32.
        `nc` goes through the read-only path: the memory must not be written while the kernel runs. `hints` are the cache
        modifiers of the row."""
        return self._load(element, dtype, nc, hints)[0]

    def load_vector(
        self, element: Element, count: int, dtype: DType | None = None, *, nc: bool = False, **hints: str
    ) -> tuple[Value, ...]:
        """Load `count` (2 or 4) consecutive elements in one instruction, whose address must be a multiple of its size."""
        return self._load(element, dtype, nc, {**hints, "vec": f"v{count}"})

    def load_where(self, guard: Value, element: Element, values: Sequence[Value]) -> None:
        """Load the element, and those after it, into these registers (1, 2 or 4, by one instruction) in the threads where
        `guard` holds; in others they keep what they have, and nothing is read."""
        for value in values:
            if value.type != _register_type(element.dtype):
                raise TypeMismatch(f"load of {element.dtype} into a register of {value.type}", self.where())
        vector = {"vec": f"v{len(values)}"} if len(values) > 1 else {}
        self._load(element, None, False, vector, tuple(values), guard)

    def _load(
        self,
        element: Element,
        dtype: DType | None,
        nc: bool,
        hints: Mapping[str, str],
        into: Sequence[Value] = (),
        guard: Value | None = None,
    ) -> tuple[Value, ...]:
        if not isinstance(element, Element):
            raise no_element("k.load_vector" if "vec" in hints else "k.load", element, self.where)
        type = dtype or element.dtype
        nc = (nc or element.nc) and not self._in_order
        modifiers = {"type": _memory_type(type).name, **hints}
        if not nc:
            modifiers["space"] = element.space
        elif element.space != "global":
            raise AuthorError(f"nc loads from global memory only, this element is in {element.space} memory", self.where())
        return self.write(
            "ld_nc" if nc else "ld", [element.address], modifiers, result=_register_type(type), into=into, guard=guard
        )

    @contextmanager
    def loads_in_order(self) -> Iterator[None]:
        """`with k.loads_in_order():` loads of the body take no read-only path (`nc`). The assembler was seen to move loads of
        that path over barriers, in both directions, and leaves these where they are written (nvJitLink 13.0)."""
        before, self._in_order = self._in_order, True
        try:
            yield
        finally:
            self._in_order = before

    def copy_async(
        self, to: Element, source: Element, nbytes: int, *, taken: Value | None = None, guard: Value | None = None, **hints: str
    ) -> None:
        """Begin to copy 4, 8 or 16 bytes from global to shared memory in the threads where `guard` holds, all unless told
        otherwise; part of the next group that is committed. Only `taken` bytes (u32) are read, and the others become 0. `hints`
        are the modifiers of the row."""
        for one in (to, source):
            if not isinstance(one, Element):
                raise no_element("k.copy_async", one, self.where)
        sizes = [nbytes] if taken is None else [nbytes, taken]
        self.write("cp_async", [to.address, source.address, *sizes], hints, guard=guard)

    def store(self, element: Element, value: Value | float | Sequence[Value], **hints: str) -> None:
        """Store a value of the element's type; u32 (s32) goes into u8 and u16 (s8 and s16) by its low bits. A sequence of 2 or
        4 is stored in one instruction."""
        if not isinstance(element, Element):
            raise no_element("k.store", element, self.where)
        type = element.dtype
        modifiers = {"space": element.space, "type": _memory_type(type).name, **hints}
        if isinstance(value, Sequence):
            modifiers["vec"] = f"v{len(value)}"
        for one in value if isinstance(value, Sequence) else (value,):
            if not isinstance(one, Value):
                if isinstance(value, Sequence):
                    raise no_vector(one, self.where)
            elif one.type not in (type, _register_type(type)):
                raise TypeMismatch(
                    f"store of {one.type} into {type} memory", self.where(), f"convert with k.{_register_type(type)}(...)"
                )
        stored = Vector(tuple(v.register for v in value)) if isinstance(value, Sequence) else value
        self.write("st", [element.address, stored], modifiers)

    def shared(self, type: DType, *shape: int, align: int = 16) -> SharedView:
        """A new array in shared memory."""
        for size in shape:
            if not isinstance(size, int) or isinstance(size, bool):
                raise no_size(size, self.where)
        name = f"shared{len(self._function.shared)}"
        self._function.shared.append(SharedArray(name, type, prod(shape), align, self.where()))
        return SharedView(self, name, type, shape)

    def dynamic_shared(self, type: DType, align: int = 16) -> SharedView:
        """The shared memory that the launch asks for (LaunchConfig.dynamic_shared), as an array that fills it."""
        function = self._function
        if not function.dynamic_shared:
            raise AuthorError(
                "the launch asks for no shared memory", self.where(), "say how much: LaunchConfig(dynamic_shared=...)"
            )
        function.dynamic_align = max(function.dynamic_align, align)
        return SharedView(self, DYNAMIC_SHARED, type, (function.dynamic_shared // type.bytes,))

    def constants(self, name: str, type: DType, values: Sequence[int]) -> GlobalArray:
        """The array `name` of the module: these whole numbers, of an unsigned type, in global memory from the start. Its loads
        go through the read-only path, and it must not be written. A kernel may ask for the same array again."""
        top = 1 << type.bits
        if type.kind is not Kind.UNSIGNED or not values or not all(isinstance(one, int) and 0 <= one < top for one in values):
            raise AuthorError(f"{name} must have whole numbers that fit an unsigned type, got {type}", self.where())
        array = ConstantArray(name, type, tuple(values))
        if self._function.constants.setdefault(name, array) != array:
            raise AuthorError(f"there is another array {name!r}, with other values", self.where())
        base = self._once(f"constants {name}", "mov", [Symbol(name)], {"type": "u64"}, U64)
        return GlobalArray(self, name, base, type, (len(values),), nc=True)


def _register_type(type: DType) -> DType:
    """What a loaded element is in a register: PTX has no 8-bit registers and its 16-bit ones only slow a kernel down."""
    if type.bits < 32 and type not in (F16, BF16, B16):
        return S32 if type.kind is Kind.SIGNED else U32
    return type


def _memory_type(type: DType) -> DType:
    """ld and st move f16 and bf16 as plain bits (PTX ISA 9.7.9.8: .type has no .f16)."""
    return B16 if type in (F16, BF16) else type
