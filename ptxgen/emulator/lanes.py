"""The algebra that gives instructions their meaning in the emulator: LLVM IR for the lanes of a warp, a block at a time."""

from __future__ import annotations

from collections.abc import Mapping

from ptxgen.emulator.arithmetic import Arithmetic
from ptxgen.emulator.bind import place_type
from ptxgen.emulator.emitter import Emitter, scalar, vector
from ptxgen.emulator.layout import Slot, State
from ptxgen.emulator.memory import MemoryOperations, Place
from ptxgen.emulator.program import Negated, ParsedOperand, Step, SymbolAddress
from ptxgen.emulator.values import Lanes
from ptxgen.emulator.warp import WarpOperations
from ptxgen.errors import ParseError
from ptxgen.isa.algebra import Value
from ptxgen.isa.effects import WEAK
from ptxgen.isa.operand_spec import OperandKind
from ptxgen.isa.operands import Address, Immediate, Register, Special, Vector
from ptxgen.types import BY_NAME, PRED, U32, U64, DType, Kind

_AXES = {"x": 0, "y": 1, "z": 2}
CARRY = "%carry"


class LaneAlgebra(Arithmetic, WarpOperations, MemoryOperations):
    """State while one kernel is compiled. `slots` are the byte offsets, in a warp's state, of registers that live across
    blocks; `constants` the registers that only ever hold one constant; `loose` those in which any NaN means the canonical."""

    def __init__(
        self,
        e: Emitter,
        *,
        sanitize: bool,
        places: dict[str, Place],
        slots: Mapping[str, int],
        constants: Mapping[str, Immediate],
        loose: frozenset[str],
        synchronises: bool = False,
    ) -> None:
        self.e, self.whole = e, self
        self.sanitize, self.places, self.synchronises = sanitize, places, synchronises
        self.ordering = WEAK
        self.smallest = (16, 16)
        self.slots, self.constants, self.loose_registers = slots, constants, loose
        self.mode = "rn"
        self.line = 0
        self.address_memory: list[str] = []
        self.carry_register = Register(CARRY, PRED)
        self.start_block("-1")

    def start_block(self, mask: str) -> None:
        self.block_mask = self.mask = mask
        self.guarded = False
        self.splats: dict[str, str] = {}
        self.numbers: dict[str, Lanes] = {}
        self.sorted: dict[tuple[str, str, int], tuple[str, str]] = {}
        self.held: dict[str, Lanes] = {}
        self.written: dict[str, Register] = {}
        self.specials: dict[str, Lanes] = {}
        self.barrier_operands: tuple[str, tuple[Lanes, ...]] = ("", ())

    # Registers
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
        if type.is_float and scalar(type)[0] != "i" and isinstance(operand.value, int):
            return self.bits(self.const(operand.value, BY_NAME[f"u{type.bits}"]), type)
        if type.is_float and isinstance(operand.value, int):
            integer = self.const(operand.value, BY_NAME[f"u{type.bits}"])
            return self.bits(integer, type)
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
        if name in self.constants:
            value = self.read(self.constants[name], register.type)
        elif name not in self.slots:
            value = Lanes(self, register.type, "poison" if register.type.bits > 1 else "false", True)
        else:
            value = self.load_slot(register)
        self.held[name] = value
        return value

    def load_slot(self, register: Register) -> Lanes:
        pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {self.slots[register.name]}")
        if register.type == PRED:
            bits = self.e.emit(f"load i32, ptr {pointer}, align 4")
            return Lanes(self, PRED, self.e.emit(f"bitcast i32 {bits} to <32 x i1>"), False)
        kind = vector(scalar(register.type))
        loaded = self.e.emit(f"load {kind}, ptr {pointer}, align 64")
        return Lanes(self, register.type, loaded, False, loose=register.name in self.loose_registers)

    def write(self, register: Register, value: Lanes) -> None:
        """Put `value` into a register; a wider one is filled by the sign of the value's type (PTX ISA 9.4.1)."""
        if register.name == "_":
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

    def read_special_register(self, name: str, type: DType) -> Lanes:
        return self.register(Register(name, type))

    def write_special_register(self, name: str, value: Lanes) -> None:
        self.write(Register(name, value.type), value)

    def store_written(self, live_out: frozenset[str] | set[str], everyone: bool) -> None:
        """Store the registers written in this block that later blocks read; `everyone`: no lane is elsewhere."""
        for name, register in self.written.items():
            if name not in live_out or name not in self.slots:
                continue
            value = self.held[name]
            if name not in self.loose_registers:
                value = self.tight(value)
            pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {self.slots[name]}")
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

    # Special registers
    def special(self, name: str, type: DType) -> Lanes:
        if name not in self.specials:
            self.specials[name] = self._special(name, type)
        return self.specials[name]

    def _special(self, name: str, type: DType) -> Lanes:
        stem, _, axis = name[1:].partition(".")
        if stem == "tid":
            offset = (State.TID_X, State.TID_Y, State.TID_Z)[_AXES[axis]]
            pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {offset}")
            return Lanes(self, U32, self.e.emit(f"load <32 x i32>, ptr {pointer}, align 64"), False)
        if stem in ("ntid", "ctaid", "nctaid"):
            first = {"ntid": Slot.NTID_X, "ctaid": Slot.CTAID_X, "nctaid": Slot.NCTAID_X}[stem]
            return self.convert(self._varying_slot(Slot(first + _AXES[axis])), U32)
        if stem == "laneid":
            return self.lane()
        if stem.startswith("lanemask_"):
            lane = self.lane()
            bit = self.const(1, U32) << lane
            below = bit - 1
            at_most = below | bit
            return {"eq": bit, "lt": below, "le": at_most, "ge": ~below, "gt": ~at_most}[stem[9:]]
        if stem == "warpid":
            pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {State.WARP}")
            return Lanes(self, U32, self.e.emit(f"load i32, ptr {pointer}, align 4"), True)
        if stem in ("dynamic_smem_size", "total_smem_size"):
            slot = Slot.DYNAMIC_SHARED if stem[0] == "d" else Slot.SHARED_BYTES
            return self.convert(self._varying_slot(slot), U32)
        if stem.startswith(("clock", "globaltimer")):
            name = self.e.call("llvm.readcyclecounter", "i64")
            counter = Lanes(self, U64, name, True)
            if type.bits == 32:
                return self.convert(counter >> 32 if stem.endswith("_hi") else counter, U32)
            return counter
        known = {"nwarpid": 64, "smid": 0, "nsmid": 1, "gridid": 0}
        if stem not in known:
            raise ParseError(f"special register {name} is not emulated", self.line)
        return self.const(known[stem], type)

    def _varying_slot(self, slot: Slot) -> Lanes:
        """A context word that changes from block to block, so no load of it may be moved out of the kernel."""
        pointer = self.e.emit(f"getelementptr i64, ptr %c, i64 {int(slot)}")
        return Lanes(self, U64, self.e.emit(f"load i64, ptr {pointer}, align 8"), True)

    # Instructions
    def barrier(self, kind: str, *operands: Value) -> None:
        self.barrier_operands = (kind, tuple(self.like(o, U32) for o in operands))
        if kind == "warp" and self.sanitize:  # the lanes have met: flow.py sees to it
            pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {State.SYNC_EPOCH}")
            before = self.e.emit(f"load i32, ptr {pointer}, align 4")
            self.e.do(f"store i32 {self.e.emit(f'add i32 {before}, 1')}, ptr {pointer}, align 4")
        if kind == "grid" and self.sanitize:
            pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {State.WAITED}")
            before = self.e.emit(f"load i32, ptr {pointer}, align 4")
            self.e.do(f"store i32 {self.e.emit(f'or i32 {before}, {self.mask}')}, ptr {pointer}, align 4")

    def trap(self) -> None:
        return None

    def guard_bits(self, step: Step) -> str:
        """The lanes of the block whose guard holds."""
        assert step.guard is not None
        value = self.register(step.guard.register)
        if step.guard.negated:
            value = ~value
        self.guard_value = value
        bits = self.e.emit(f"bitcast <32 x i1> {self.spread(value)} to i32")
        return self.e.emit(f"and i32 {bits}, {self.block_mask}")

    def execute(self, step: Step) -> None:
        """Emit one instruction: read its sources, call its row's meaning, write its destinations."""
        self.line = step.line
        self.ordering = step.row.ordering(step.modifiers)
        self.guarded = step.guard is not None
        self.mask = self.guard_bits(step) if self.guarded else self.block_mask
        try:
            result = step.row.meaning(self, *self.sources(step), **step.modifiers)
        except (TypeError, ValueError, KeyError) as e:
            raise ParseError(f"{step.row.opcode(step.modifiers)} is not emulated with these operands: {e}", step.line) from e
        if self.ordering.fence:
            self.fence()
        places = [p for p in step.row.operands if p.is_destination and p.name in step.operands]
        all_places = step.row.destinations
        if not all_places:
            self.guarded, self.mask = False, self.block_mask
            return
        results = result if len(all_places) > 1 else (result,)
        by_name = dict(zip((p.name for p in all_places), results, strict=True))
        for place in places:
            self._assign(step, place.name, by_name[place.name])
        self.guarded, self.mask = False, self.block_mask

    def _assign(self, step: Step, name: str, value: Lanes | tuple[Lanes, ...]) -> None:
        operand = step.operands[name]
        if isinstance(operand, Vector):
            values = value if isinstance(value, tuple) else (value,)
            for register, one in zip(operand.elements, values, strict=True):
                if isinstance(register, Register):
                    self.write(register, one)
        elif isinstance(operand, Register):
            if isinstance(value, tuple):
                raise ParseError(f"{step.row.name} gives {len(value)} values to one register", self.line)
            self.write(operand, value)

    def sources(self, step: Step) -> list[object]:
        """The sources as a meaning takes them; an optional one that the text leaves out ends the list."""
        found: list[object] = []
        for place in step.row.sources:
            operand = step.operands.get(place.name)
            if operand is None:
                continue
            if place.spec.kind in (OperandKind.LABEL, OperandKind.SYMBOL):
                continue
            if place.spec.kind is OperandKind.CONSTANT:
                found.append(int(operand.value) if isinstance(operand, Immediate) else operand)
                continue
            if isinstance(operand, Address):
                found.append(operand)
                continue
            type = place_type(step.row, step.modifiers, place, step.operands) or U32
            if isinstance(operand, Vector):
                elements = tuple(self.read(x, type) if x is not None else self.const(0, type) for x in operand.elements)
                found.append(elements)
            else:
                found.append(self.read(operand, type))
        return found
