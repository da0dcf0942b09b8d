"""Memory instructions as LLVM IR: addresses of every state space, loads, stores, atomics and deferred copies of the 32 lanes.

A global, const, generic, local or parameter address is an address of this process once `host` has seen it; in registers,
shared and local addresses are offsets into their windows until `cvta` makes them generic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptxgen.emulator.emitter import Emitter, scalar, vector
from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.ordering import event_flags
from ptxgen.emulator.registers import Frame
from ptxgen.emulator.runtime import queues
from ptxgen.emulator.runtime.access import checked_loader, checked_storer, loader, sorter, storer
from ptxgen.emulator.runtime.builder import RuntimeFunction
from ptxgen.emulator.runtime.bulk_copies import hurry
from ptxgen.emulator.runtime.check import LATE_LOAD, READ_ONLY_PATH, access_word, check, check_taken
from ptxgen.emulator.runtime.events import event
from ptxgen.emulator.runtime.shadow import AccessKind
from ptxgen.emulator.sanitizer import SPACE_CODES, FindingKind, extra
from ptxgen.emulator.values import Lanes
from ptxgen.emulator.warp import WarpOperations
from ptxgen.errors import ParseError
from ptxgen.isa.algebra import Number
from ptxgen.isa.effects import WEAK, Ordering
from ptxgen.isa.operands import Address, Immediate, Register, Symbol
from ptxgen.target import WARP_SIZE
from ptxgen.types import B32, BY_NAME, PRED, U32, U64, DType

_V64 = "<32 x i64>"


class MemoryOperations(WarpOperations):
    """Memory. `ordering` is that of the instruction in progress; `smallest` the bytes of the smallest access that is checked,
    of those that may be shared and of those that may be global. `promises`: it is a load through the read-only path; `late`:
    one that an arrival at an mbarrier does not wait for."""

    def __init__(self, e: Emitter, frame: Frame) -> None:
        self.ordering: Ordering = WEAK
        self.promises = self.late = False
        self.smallest = (16, 16)
        self.address_memory: list[str] = []
        super().__init__(e, frame)

    def start_block(self, mask: str) -> None:
        super().start_block(mask)
        self.numbers: dict[str, Lanes] = {}  # by register value, as an address
        self.sorted: dict[tuple[str, str, int], tuple[str, str]] = {}  # by addresses, mask and step: their memory and pattern

    # Addresses
    def window(self, space: str, a: Lanes) -> Lanes:
        """The host address of an offset in the window of a space; other spaces hold host addresses already."""
        if space == "shared":
            return a + self.slot(ContextWord.SHARED)
        if space == "local":
            return a + self.local_base()
        return a

    def local_base(self) -> Lanes:
        """The host address of each thread's local memory."""
        warp, _ = self.warp_word(State.WARP)
        thread = self.convert(warp * WARP_SIZE + self.lane(), U64)
        return self.slot(ContextWord.LOCAL) + thread * self.slot(ContextWord.LOCAL_BYTES)

    def register_number(self, base: Register | Immediate) -> Lanes:
        """A register as a 64-bit address, widened once a block."""
        value = self.read(base, BY_NAME[f"u{base.type.bits}"])
        if value.name not in self.numbers:
            self.numbers[value.name] = self.convert(value, U64)
        return self.numbers[value.name]

    def parts(self, space: str, address: Address | Number) -> tuple[Lanes, Lanes, str]:
        """The host address as what an access's lanes differ in and what they share, and the space that it is in. Accesses
        through one register at several offsets have the first part in common."""
        none = self.const(0, U64)
        if not isinstance(address, Address):
            number = self.convert(self.like(address, U64), U64)
            return self.window(space, self.bits(number, U64)), none, space
        if isinstance(address.base, Symbol):
            place = self.place(address.base.name)
            if space not in (place.space, "generic") and not (space == "param" and place.space == "local"):
                raise ParseError(f"{address.base.name} is in {place.space} memory, not {space}", self.line)
            return self.window(place.space, self.number_of(address.base.name, address.offset)), none, place.space
        number, shared_part = self.register_number(address.base), self.const(address.offset, U64)
        if space == "shared":
            shared_part = self.slot(ContextWord.SHARED) + shared_part
        elif space == "local":
            number = self.window(space, number)
        return (number + shared_part, none, space) if number.uniform else (number, shared_part, space)

    def host(self, space: str, address: Address | Number) -> tuple[Lanes, str]:
        """The host address, and the space that the access is in."""
        number, shared_part, space = self.parts(space, address)
        return number + shared_part, space

    def address_of(self, address: Address) -> Lanes:
        if isinstance(address.base, Symbol):
            return self.number_of(address.base.name, address.offset)
        return self.register_number(address.base) + address.offset

    def to_generic(self, space: str, a: Number) -> Lanes:
        return self.window(space, self.bits(self.convert(a, U64), U64))

    def from_generic(self, space: str, a: Number) -> Lanes:
        number = self.bits(a, U64)
        if space == "shared":
            return number - self.slot(ContextWord.SHARED)
        if space == "local":
            return number - self.local_base()
        return number

    def is_space(self, space: str, a: Number) -> Lanes:
        number = self.bits(a, U64)
        in_shared = number - self.slot(ContextWord.SHARED) < self.slot(ContextWord.SHARED_BYTES)
        in_local = number - self.local_base() < self.slot(ContextWord.LOCAL_BYTES)
        if space == "const":
            return self.const(0, PRED)
        return {"shared": in_shared, "local": in_local, "global": ~(in_shared | in_local)}[space]

    def beyond(self, space: str, address: Address | Number, size: int) -> bool:
        """Whether an access to `space` is known to leave the parameter that it names. Without the sanitiser that is refused, so
        that no text can make this process read what lies behind its parameters."""
        if space != "param" or not isinstance(address, Address) or not isinstance(address.base, Symbol):
            return False
        place, offset = self.place(address.base.name), address.offset
        outside = offset < 0 or offset + size > place.size
        if outside and not self.sanitize:
            name = address.base.name
            raise ParseError(f"{name} has {place.size} bytes; {size} bytes at {offset} are not among them", self.line)
        return outside

    def sort(self, addresses: Lanes, mask: str, step: int) -> tuple[str, str]:
        """The memory and the pattern of addresses; found once a block for the same ones."""
        key = (addresses.name, mask, step)
        if key not in self.sorted:
            if self.sanitize:
                self.sorted.clear()  # each checked access has a mask of its own, so keeping the memory would help none
            used = len(self.sorted)
            if used == len(self.address_memory):
                self.address_memory.append(self.e.alloca(_V64))
            memory = self.address_memory[used]
            pattern = self.e.call_runtime(sorter(step), memory, self.spread(addresses), mask)
            self.sorted[key] = memory, pattern
        return self.sorted[key]

    def load(self, space: str, address: Address | Number, type: DType, count: int = 1) -> tuple[Lanes, ...]:
        where, offset, space = self.parts(space, address)
        if self.beyond(space, address, type.bytes * count):
            return self._refused(where, type, count, AccessKind.LOAD)
        checked = self.sanitize and not _names_parameter(space, address)
        if checked:
            where, offset = where + offset, self.const(0, U64)
        if where.uniform and not self.guarded and not checked:
            return self._load_one(where, type, count)
        if checked:
            vectors = self._load_checked(where, self._checked_mask(where, type, count, space, AccessKind.LOAD), type, count)
        else:
            vectors = self._load_lanes(where, offset, self.mask, type, count)
        return tuple(self._loaded(v, type, False) for v in vectors)

    def _refused(self, where: Lanes, type: DType, count: int, access: AccessKind) -> tuple[Lanes, ...]:
        """Report an access beyond a parameter instead of making it; what a load would have given is all ones."""
        size = type.bytes * count
        record = extra(size, "param", writes=access is not AccessKind.LOAD)
        self.report_lanes(FindingKind.BOUNDS, self.mask, self.spread(where), record)
        return tuple(self._loaded("-1", type, True) for _ in range(count))

    def _load_lanes(self, where: Lanes, offset: Lanes, mask: str, type: DType, count: int) -> list[str]:
        load = loader(type.bits, count)
        memory, pattern = self.sort(where, mask, type.bytes * count)
        return self._vectors(load, self.e.call_runtime(load, memory, offset.name, pattern), count)

    def _load_checked(self, where: Lanes, mask: str, type: DType, count: int) -> list[str]:
        load = checked_loader(type.bits, count)
        return self._vectors(load, self.e.call_runtime(load, self.spread(where), mask), count)

    def _vectors(self, load: RuntimeFunction, loaded: str, count: int) -> list[str]:
        return [loaded] if count == 1 else [self.e.emit(f"extractvalue {load.result} {loaded}, {k}") for k in range(count)]

    def _load_one(self, where: Lanes, type: DType, count: int) -> tuple[Lanes, ...]:
        pointer = self.e.emit(f"inttoptr i64 {where.name} to ptr")
        loaded = []
        for k in range(count):
            at = self.e.emit(f"getelementptr i8, ptr {pointer}, i64 {k * type.bytes}") if k else pointer
            loaded.append(self._loaded(self.e.emit(f"load i{type.bits}, ptr {at}, align 1"), type, True))
        return tuple(loaded)

    def _loaded(self, name: str, type: DType, uniform: bool) -> Lanes:
        integer = BY_NAME[f"u{type.bits}"] if type.bits < 128 else type
        return self.bits(Lanes(self, integer, name, uniform), type)

    def _poison(self, value: str, mask: str, bits: int) -> str:
        """All ones (a NaN) in the lanes whose access was refused."""
        allowed = self.e.emit(f"bitcast i32 {mask} to <32 x i1>")
        return self.e.emit(f"select <32 x i1> {allowed}, <32 x i{bits}> {value}, <32 x i{bits}> splat (i{bits} -1)")

    def store(self, space: str, address: Address | Number, values: Sequence[Number], type: DType) -> None:
        where, offset, space = self.parts(space, address)
        base = address.base if isinstance(address, Address) else None
        if space == "param" and isinstance(base, Symbol) and self.place(base.name).space == "param":
            raise ParseError(f"{base.name} is a parameter of the kernel, which cannot be written", self.line)
        if self.beyond(space, address, type.bytes * len(values)):
            self._refused(where, type, len(values), AccessKind.STORE)
            return
        integer = BY_NAME[f"u{type.bits}"] if type.bits < 128 else type
        numbers = [self.bits(self.convert(v, type) if _needs_resize(v, type) else v, integer) for v in values]
        if self.sanitize:
            self._store_checked(where + offset, numbers, type, space)
            return
        if where.uniform and all(n.uniform for n in numbers) and not self.guarded:
            pointer = self.e.emit(f"inttoptr i64 {where.name} to ptr")
            for k, number in enumerate(numbers):
                at = self.e.emit(f"getelementptr i8, ptr {pointer}, i64 {k * type.bytes}") if k else pointer
                self.e.do(f"store i{type.bits} {number.name}, ptr {at}, align 1")
            return
        vectors = [self.spread(n) for n in numbers]
        memory, pattern = self.sort(where, self.mask, type.bytes * len(numbers))
        self.e.call_runtime(storer(type.bits, len(numbers)), memory, offset.name, pattern, self.mask, *vectors)

    def _store_checked(self, where: Lanes, numbers: Sequence[Lanes], type: DType, space: str) -> None:
        mask = self._checked_mask(where, type, len(numbers), space, AccessKind.STORE)
        store = checked_storer(type.bits, len(numbers))
        self.e.call_runtime(store, "%c", "%s", self.line, self.spread(where), mask, *(self.spread(n) for n in numbers))

    def _checked_mask(self, where: Lanes, type: DType, count: int, space: str, access: AccessKind) -> str:
        size = type.bytes * count
        self._notice(type.bytes, space)
        # Volatile accesses of shared memory count as weak: lanes that relied on them to move in step raced.
        scope = self.ordering.scope
        word = access_word(access, 0 if self.ordering.volatile else scope, scope)
        word |= READ_ONLY_PATH * self.promises | LATE_LOAD * self.late
        addresses = self.spread(where)
        if self.frame.checks_waits:
            self.e.call_runtime(hurry, "%c", "%s")
        allowed = self.e.call_runtime(check, "%c", "%s", addresses, self.mask, size, SPACE_CODES.get(space, 0), word, self.line)
        if self.frame.synchronises and scope and space not in ("local", "param"):
            self._event(allowed, addresses, access is not AccessKind.STORE, access is not AccessKind.LOAD)
        return allowed

    def _notice(self, size: int, space: str) -> None:
        """Keep the smallest of the accesses that are checked."""
        smallest_shared, smallest_global = self.smallest
        self.smallest = (
            min(smallest_shared, size) if space in ("shared", "generic") else smallest_shared,
            min(smallest_global, size) if space not in ("shared", "local", "param") else smallest_global,
        )

    def fence(self) -> None:
        """Tell the sanitiser that the lanes execute a fence."""
        if self.frame.synchronises:
            self._event(self.mask, "zeroinitializer", False, False)

    def _event(self, mask: str, addresses: str, reads: bool, writes: bool) -> None:
        flags = event_flags(self.ordering, reads, writes)
        self.e.call_runtime(event, "%c", "%s", addresses, mask, flags)

    def atomic(self, space: str, address: Address, type: DType, update: Callable[..., Number], *operands: Number) -> Lanes:
        where, space = self.host(space, address)
        mask = self._checked_mask(where, type, 1, space, AccessKind.ATOMIC) if self.sanitize else self.mask
        values = [self.tight(self.like(o, type)) for o in operands]
        # A vector of predicates is packed in memory, a byte each is not.
        sources = [self.resize(g, BY_NAME["u8"], False) if g.type == PRED else g for g in values]
        element = f"i{type.bits}"
        old, left = self.e.alloca(vector(element)), self.e.alloca("i32")
        addresses = self.e.alloca(_V64)
        stored = [(s, self.e.alloca(vector(scalar(s.type)))) for s in sources]
        self.e.do(f"store {_V64} {self.spread(where)}, ptr {addresses}, align 64")
        for source, memory in stored:
            self.e.do(f"store {vector(scalar(source.type))} {self.spread(source)}, ptr {memory}, align 64")
        self.e.do(f"store i32 {mask}, ptr {left}, align 4")
        test, body, after = self.e.fresh("atom"), self.e.fresh("each"), self.e.fresh("done")
        self.e.do(f"br label %{test}")
        self.e.label(test)
        lanes = self.e.emit(f"load i32, ptr {left}, align 4")
        none = self.e.emit(f"icmp eq i32 {lanes}, 0")
        self.e.do(f"br i1 {none}, label %{after}, label %{body}")
        self.e.label(body)
        saved, self.splats = self.splats, {}
        self.e.declare("llvm.cttz.i32", "i32", "i32", "i1")
        lane = self.e.emit(f"call i32 @llvm.cttz.i32(i32 {lanes}, i1 true)")
        less = self.e.emit(f"sub i32 {lanes}, 1")
        self.e.do(f"store i32 {self.e.emit(f'and i32 {lanes}, {less}')}, ptr {left}, align 4")
        numbers = []
        for source, memory in stored:
            kind = scalar(source.type)
            at = self.e.emit(f"getelementptr {kind}, ptr {memory}, i32 {lane}")
            number = Lanes(self, source.type, self.e.emit(f"load {kind}, ptr {at}"), True)
            numbers.append(number)
        at = self.e.emit(f"getelementptr i64, ptr {addresses}, i32 {lane}")
        pointer = self.e.emit(f"inttoptr i64 {self.e.emit(f'load i64, ptr {at}')} to ptr")
        before = self.e.emit(f"load {element}, ptr {pointer}, align 1")
        result = self.e.emit(f"getelementptr {element}, ptr {old}, i32 {lane}")
        self.e.do(f"store {element} {before}, ptr {result}")
        integer = BY_NAME[f"u{type.bits}"] if type.bits < 128 else type
        numbers = [n != 0 if g.type == PRED else n for n, g in zip(numbers, values, strict=True)]
        new = update(self._loaded(before, type, True), *numbers)
        self.e.do(f"store {element} {self.bits(new, integer).name}, ptr {pointer}, align 1")
        self.e.do(f"br label %{test}")
        self.e.label(after)
        self.splats = saved
        result = self.e.emit(f"load {vector(element)}, ptr {old}, align 64")
        return self._loaded(self._poison(result, mask, type.bits) if self.sanitize else result, type, False)

    def copy_async(self, destination: Address, source: Address, size: int, bytes_read: Number | None) -> None:
        to, _ = self.host("shared", destination)
        start, _ = self.host("global", source)
        kept = self.const(size, U32) if bytes_read is None else self.bits(self.convert(bytes_read, U32), B32)
        mask = self.mask
        if self.sanitize:
            unit = BY_NAME[f"b{8 * size}"]
            filled = self._checked_mask(to, unit, 1, "shared", AccessKind.COPY)
            if bytes_read is None:
                taken = self._checked_mask(start, unit, 1, "global", AccessKind.LOAD)
            else:
                self._notice(size, "global")
                vectors = self.spread(start), self.mask, self.spread(kept)
                taken = self.e.call_runtime(check_taken, "%c", "%s", *vectors, size, self.line)
            mask = self.e.emit(f"and i32 {filled}, {taken}")  # what is wrong with one side hides nothing of the other
        copies = (self.spread(v) for v in (to, start, kept))
        self.e.call_runtime(queues.queue_copies, "%c", "%s", "%q", mask, *copies, size, self.line)

    def commit_async(self) -> None:
        self.e.call_runtime(queues.commit_copies, "%s", self.mask)

    def wait_async(self, pending: int) -> None:
        self.e.call_runtime(queues.wait_copies, "%c", "%s", "%q", self.mask, pending)


def _names_parameter(space: str, address: Address | Number) -> bool:
    """Whether an access is to a place in the parameters that is known here, so that nothing is left to check."""
    return space == "param" and isinstance(address, Address) and isinstance(address.base, Symbol)


def _needs_resize(value: Number, type: DType) -> bool:
    return value.type.bits != type.bits
