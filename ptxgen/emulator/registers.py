"""What a kernel's names hold, as LLVM IR: registers, special registers, variables, words of the launch context."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ptxgen.emulator.arithmetic import Arithmetic
from ptxgen.emulator.emitter import Emitter, scalar, vector
from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.program import SINK, Negated, ParsedOperand, SymbolAddress
from ptxgen.emulator.values import Lanes, constant_value
from ptxgen.errors import ParseError
from ptxgen.isa.operands import Immediate, Register, Special
from ptxgen.target import WARP_SIZE
from ptxgen.types import BY_NAME, PRED, U32, U64, DType, Kind

_AXES = {"x": 0, "y": 1, "z": 2}
_CLOCKS = ("%clock", "%globaltimer")
_FIXED = {"nwarpid": 64, "smid": 0, "nsmid": 1, "gridid": 0}


@dataclass
class MemoryPlace:
    """Where a variable or parameter lies: its space, and its offset and bytes there."""

    space: str
    offset: int
    size: int


@dataclass(frozen=True)
class Frame:
    """What the algebra must know of a kernel. `slots` are the byte offsets, in a warp's state, of registers that live across
    blocks; `constants` the registers that only ever hold one constant; `loose` those in which any NaN means the canonical.
    `checks_products`: the sanitiser looks after products of warpgroups; `checks_waits`: after waits for bulk copies.
    `late`: the `id`s of the loads whose values may not be there when their thread arrives at a barrier (late_loads.py)."""

    places: Mapping[str, MemoryPlace]
    slots: Mapping[str, int]
    constants: Mapping[str, Immediate]
    loose: frozenset[str]
    sanitize: bool
    synchronises: bool
    checks_products: bool
    checks_waits: bool
    late: frozenset[int]

    @property
    def checks_proxies(self) -> bool:
        """Whether the sanitiser looks after what shared memory holds for the asynchronous proxy."""
        return self.checks_products or self.checks_waits


class Registers(Arithmetic):
    """What is held while a block is compiled. `mask` names the lanes that run the instruction in progress, of `block_mask`,
    those that run the block."""

    def __init__(self, e: Emitter, frame: Frame) -> None:
        super().__init__(e)
        self.frame = frame
        self.sanitize = frame.sanitize
        self.line = 0
        self.start_block("-1")

    def start_block(self, mask: str) -> None:
        """Forget what was held: the block may be entered from several others."""
        self.block_mask = self.mask = mask
        self.guarded, self.guard_value = False, self.const(1, PRED)
        self.splats.clear()
        self.held: dict[str, Lanes] = {}
        self.written: dict[str, Register] = {}
        self.specials: dict[str, Lanes] = {}

    def read(self, operand: ParsedOperand, type: DType) -> Lanes:
        """The operand's number as `type`: a wider register's low bits, a narrower one's as they are."""
        if isinstance(operand, Immediate):
            return self.const(operand.value, type) if operand.type.is_float == type.is_float else self._immediate(operand, type)
        if isinstance(operand, Negated):
            return ~self.register(operand.register)
        if isinstance(operand, Special):
            return self._fitted(self.special(operand.name, operand.type), type)
        if isinstance(operand, SymbolAddress):
            return self._fitted(self.number_of(operand.name, operand.offset), type)
        if isinstance(operand, Register):
            return self._fitted(self.register(operand), type)
        raise ParseError(f"{operand} cannot be read", self.line)

    def _immediate(self, operand: Immediate, type: DType) -> Lanes:
        if type.is_float and isinstance(operand.value, int):
            return self.bits(self.const(operand.value, BY_NAME[f"u{type.bits}"]), type)
        return self.bits(self.const(operand.value, operand.type), type)

    def _fitted(self, value: Lanes, type: DType) -> Lanes:
        if value.type == type:
            return value
        if value.type.bits == type.bits:
            return self.bits(value, type)
        if value.type.kind is Kind.PREDICATE or type.kind is Kind.PREDICATE:
            raise ParseError(f"a {value.type} register cannot be read as {type}", self.line)
        number = self.bits(value, BY_NAME[f"u{value.type.bits}"])
        narrow = self.resize(number, BY_NAME[f"u{type.bits}"], False)
        return self.bits(narrow, type)

    def register(self, register: Register) -> Lanes:
        """What a register holds, in its own type."""
        name = register.name
        if name in self.held:
            return self.held[name]
        if name in self.frame.constants:
            value = self.read(self.frame.constants[name], register.type)
        elif name not in self.frame.slots:
            value = Lanes(self, register.type, "poison" if register.type.bits > 1 else "false", True)
        else:
            value = self.load_slot(register)
        self.held[name] = value
        return value

    def load_slot(self, register: Register) -> Lanes:
        """What an earlier block left in the register's slot."""
        pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {self.frame.slots[register.name]}")
        if register.type == PRED:
            bits = self.e.emit(f"load i32, ptr {pointer}, align 4")
            return Lanes(self, PRED, self.e.emit(f"bitcast i32 {bits} to <32 x i1>"), False)
        kind = vector(scalar(register.type))
        loaded = self.e.emit(f"load {kind}, ptr {pointer}, align 64")
        return Lanes(self, register.type, loaded, False, loose=register.name in self.frame.loose)

    def write(self, register: Register, value: Lanes) -> None:
        """Put `value` into a register; a wider one is filled by the sign of the value's type (PTX ISA 9.4.1)."""
        if register.name == SINK:
            return
        kind = register.type
        if value.type.bits < kind.bits:
            source = value.type
            plain = source if source.is_integer else BY_NAME[f"u{source.bits}"]
            wide = BY_NAME[f"{'s' if source.is_signed else 'u'}{kind.bits}"]
            value = self.bits(self.resize(self.bits(value, plain), wide, source.is_signed), kind)
        elif value.type != kind:
            value = self._fitted(value, kind)
        if self.guarded:
            value = self.select(self.guard_value, value, self.register(register))
        self.held[register.name] = value
        self.written[register.name] = register

    def store_written(self, live_out: frozenset[str] | set[str], everyone: bool) -> None:
        """Store the registers written in this block that later blocks read; `everyone`: no lane is elsewhere."""
        for name, register in self.written.items():
            if name not in live_out or name not in self.frame.slots:
                continue
            value = self.held[name]
            if name not in self.frame.loose:
                value = self.tight(value)
            pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {self.frame.slots[name]}")
            if register.type == PRED:
                bits = self.e.emit(f"bitcast <32 x i1> {self.spread(value)} to i32")
                if not everyone:
                    old = self.e.emit(f"load i32, ptr {pointer}, align 4")
                    flip = self.e.emit(f"xor i32 {old}, {bits}")
                    bits = self.e.emit(f"xor i32 {old}, {self.e.emit(f'and i32 {flip}, {self.block_mask}')}")
                self.e.do(f"store i32 {bits}, ptr {pointer}, align 4")
                continue
            kind, data = vector(scalar(register.type)), self.spread(value)
            if not everyone:
                old = self.e.emit(f"load {kind}, ptr {pointer}, align 64")
                active = self.e.emit(f"bitcast i32 {self.block_mask} to <32 x i1>")
                data = self.e.emit(f"select <32 x i1> {active}, {kind} {data}, {kind} {old}")
            self.e.do(f"store {kind} {data}, ptr {pointer}, align 64")

    # The launch, the warp and its variables
    def slot(self, slot: ContextWord, *, varies: bool = False) -> Lanes:
        """A word of the launch context. One that `varies` from block to block may not be loaded outside the kernel's loop."""
        pointer = self.e.emit(f"getelementptr i64, ptr %c, i64 {int(slot)}")
        hint = "" if varies else ", !invariant.load !0"
        return Lanes(self, U64, self.e.emit(f"load i64, ptr {pointer}, align 8{hint}"), True)

    def warp_word(self, part: State) -> tuple[Lanes, str]:
        """A number in the warp's state, and the address of it."""
        pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {int(part)}")
        return Lanes(self, U32, self.e.emit(f"load i32, ptr {pointer}, align 4"), True), pointer

    def lane(self) -> Lanes:
        return constant_value(self, U32, tuple(range(WARP_SIZE)))

    def place(self, name: str) -> MemoryPlace:
        """Where a variable or parameter lies; ParseError for a name that is none."""
        if name not in self.frame.places:
            raise ParseError(f"{name} is not declared", self.line)
        return self.frame.places[name]

    def number_of(self, name: str, offset: int) -> Lanes:
        """The value of a variable's name in a register: an offset in its window, or a host address."""
        place = self.place(name)
        total = self.const(place.offset + offset, U64)
        if place.space == "param":
            return self.slot(ContextWord.PARAMETERS) + total
        if place.space in ("global", "const"):
            return self.slot(ContextWord.DATA) + total
        return total

    # Special registers
    def special(self, name: str, type: DType) -> Lanes:
        """A special register, read once a block; a clock each time."""
        if name not in self.specials or name.startswith(_CLOCKS):
            self.specials[name] = self._special(name, type)
        return self.specials[name]

    def _special(self, name: str, type: DType) -> Lanes:
        stem, _, axis = name[1:].partition(".")
        if stem == "tid":
            offset = (State.TID_X, State.TID_Y, State.TID_Z)[_AXES[axis]]
            pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {int(offset)}")
            return Lanes(self, U32, self.e.emit(f"load <32 x i32>, ptr {pointer}, align 64"), False)
        if stem in ("ntid", "ctaid", "nctaid"):
            first = {"ntid": ContextWord.NTID_X, "ctaid": ContextWord.CTAID_X, "nctaid": ContextWord.NCTAID_X}[stem]
            return self.convert(self.slot(ContextWord(first + _AXES[axis]), varies=True), U32)
        if stem == "laneid":
            return self.lane()
        if stem.startswith("lanemask_"):
            bit = self.const(1, U32) << self.lane()
            below = bit - 1
            at_most = below | bit
            return {"eq": bit, "lt": below, "le": at_most, "ge": ~below, "gt": ~at_most}[stem[9:]]
        if stem == "warpid":
            return self.warp_word(State.WARP)[0]
        if stem in ("dynamic_smem_size", "total_smem_size"):
            slot = ContextWord.DYNAMIC_SHARED if stem[0] == "d" else ContextWord.SHARED_BYTES
            return self.convert(self.slot(slot, varies=True), U32)
        if name.startswith(_CLOCKS):
            counter = self._nanoseconds() if stem.startswith("globaltimer") else self._cycles()
            if type.bits == 32:
                return self.convert(counter >> 32 if stem.endswith("_hi") else counter, U32)
            return counter
        if stem not in _FIXED:
            raise ParseError(f"special register {name} is not emulated", self.line)
        return self.const(_FIXED[stem], type)

    def _cycles(self) -> Lanes:
        """The counter of the processor that the warp runs on."""
        return Lanes(self, U64, self.e.call("llvm.readcyclecounter", "i64"), True)

    def _nanoseconds(self) -> Lanes:
        """The host's clock that never goes back, the same for all its processors: that of time.monotonic_ns."""
        moment = self.e.alloca("i64", 2)  # struct timespec: seconds and nanoseconds
        self.e.call("clock_gettime", "i32", ("i32", str(time.CLOCK_MONOTONIC)), ("ptr", moment))
        seconds, rest = (
            Lanes(self, U64, self.e.emit(f"load i64, ptr {pointer}, align 8"), True)
            for pointer in (moment, self.e.emit(f"getelementptr i64, ptr {moment}, i64 1"))
        )
        return seconds * 1_000_000_000 + rest
