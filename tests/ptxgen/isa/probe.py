"""Probe kernels: each row of the table with each sensible modifier combination, one instruction between loads of its operands
and stores of its results, so that the same text runs on the emulator and on a GPU and the two can be compared bit by bit.

A probe kernel `probe(out, in, word)` holds a batch of instructions of one row. Thread i reads the i-th record of `in` and
writes the i-th record of `out`; the probes of the batch have fields in both. What the operands are filled with is in
operand_values.py; how operands that are not plain registers are made ready is in probe_forms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ptxgen.isa.instructions import ROWS
from ptxgen.isa.operand_spec import OperandKind
from ptxgen.isa.operands import AnyOperand, Immediate, Register, Vector
from ptxgen.isa.table import Instruction, Need, OperandPlace
from ptxgen.target import WARP_SIZE, WARPGROUP_SIZE, Target
from ptxgen.types import B32, PRED, S32, DType
from tests.ptxgen.isa.combinations import sensible

ENTRY = "probe"
BATCH = 32


@dataclass(frozen=True)
class Field:
    """`count` elements of `type` at `offset` bytes in a record. `hint` says what an input should hold (operand_values.py)."""

    offset: int
    type: DType
    count: int = 1
    hint: str = ""

    @property
    def bytes(self) -> int:
        return self.count * max(self.type.bytes, 1)


@dataclass(frozen=True)
class Probe:
    """One instruction of a batch. `line` is its line in the text, from 1."""

    row: Instruction
    modifiers: Mapping[str, str]
    instruction: str
    line: int
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]


@dataclass(frozen=True)
class Batch:
    """A module with one kernel. Records are `in_bytes` and `out_bytes` long, and multiples of 32."""

    row: Instruction
    need: Need
    probes: tuple[Probe, ...]
    body: str
    in_bytes: int
    out_bytes: int

    @property
    def target(self) -> Target:
        """The oldest that has the instruction."""
        return Target(self.need[0], self.row.feature)

    @property
    def threads(self) -> int:
        """Of a block: those that execute the instruction together."""
        return WARPGROUP_SIZE if self.row.feature else WARP_SIZE

    def text(self, target: Target | None = None, ptx: tuple[int, int] | None = None) -> str:
        """The module's text, for its own oldest target and PTX version or for others."""
        major, minor = ptx or self.need[1]
        return f".version {major}.{minor}\n.target {target or self.target}\n.address_size 64\n{self.body}"


@dataclass
class Writer:
    """Collects the text of a batch: registers, module variables and lines, and hands out fields of the records."""

    lines: list[str] = field(default_factory=list)
    registers: list[str] = field(default_factory=list)
    module: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    inputs: list[Field] = field(default_factory=list)
    outputs: list[Field] = field(default_factory=list)
    in_bytes: int = 0
    out_bytes: int = 0
    marked: int = 0  # the line of the instruction under test

    def register(self, type: DType) -> Register:
        register = Register(f"%x{len(self.registers)}", type)
        self.registers.append(f".reg .{type.register} {register};")
        return register

    def variable(self, space: str, size: int) -> str:
        """The name of a new array of bytes; a constant one is filled, the others are not."""
        name = f"array{len(self.module) + len(self.local)}"
        content = f" = {{{', '.join(str(37 * i % 256) for i in range(size))}}}" if space == "const" else ""
        (self.local if space == "local" else self.module).append(f".{space} .align 32 .b8 {name}[{size}]{content};")
        return name

    def line(self, text: str) -> None:
        self.lines.append(text)

    def test(self, text: str) -> None:
        """The instruction under test."""
        self.marked = len(self.lines)
        self.lines.append(text)

    def input_field(self, type: DType, count: int = 1, hint: str = "") -> Field:
        """A new field of the input record, on a 32-byte boundary if it is long."""
        size = max(type.bytes, 1) * count
        align = 32 if size > 8 else 8
        start = -(-self.in_bytes // align) * align
        self.in_bytes = start + size
        place = Field(start, type, count, hint)
        self.inputs.append(place)
        return place

    def output_field(self, type: DType, count: int = 1) -> Field:
        size = type.bytes * count
        align = 32 if size > 8 else 8
        start = -(-self.out_bytes // align) * align
        self.out_bytes = start + size
        place = Field(start, type, count)
        self.outputs.append(place)
        return place

    def load(self, type: DType, hint: str = "", place: Field | None = None, index: int = 0) -> Register:
        """A register with an input in it."""
        place = place or self.input_field(type, hint=hint)
        register = self.register(type)
        if type == PRED:
            word = self.register(B32)
            self.line(f"ld.global.u8 {word}, [%in+{place.offset}];")
            self.line(f"setp.ne.b32 {register}, {word}, 0;")
        else:
            self.line(f"ld.global.b{type.bits} {register}, [%in+{place.offset + index * type.bytes}];")
        return register

    def store(self, register: Register, place: Field | None = None, index: int = 0) -> None:
        """Write a register to the output record."""
        type = register.type
        if type == PRED:
            word = self.register(B32)
            self.line(f"selp.b32 {word}, 1, 0, {register};")
            register, type = word, B32
        place = place or self.output_field(type)
        self.line(f"st.global.b{type.bits} [%out+{place.offset + index * type.bytes}], {register};")


Form = Callable[[Writer, Instruction, Mapping[str, str]], None]


def operand_type(row: Instruction, place: OperandPlace, modifiers: Mapping[str, str]) -> DType:
    """The type a probe gives the operand; `=x` follows operand x."""
    if place.spec.like:
        return operand_type(row, next(o for o in row.operands if o.name == place.spec.like), modifiers)
    return place.spec.allowed(modifiers)[-1]


def make_source(w: Writer, row: Instruction, place: OperandPlace, modifiers: Mapping[str, str]) -> AnyOperand:
    """A plain operand, loaded from the record."""
    if place.spec.kind is OperandKind.CONSTANT:
        return Immediate(0, S32)
    type = operand_type(row, place, modifiers)
    hint = f"{row.mnemonic}.{place.name}"
    if not place.spec.in_braces(modifiers):
        return w.load(type, hint)
    count = place.spec.length(modifiers)
    where = w.input_field(type, count, hint)
    return Vector(tuple(w.load(type, place=where, index=i) for i in range(count)))


def make_destination(w: Writer, row: Instruction, place: OperandPlace, modifiers: Mapping[str, str]) -> AnyOperand:
    type = operand_type(row, place, modifiers)
    if not place.spec.in_braces(modifiers):
        return w.register(type)
    return Vector(tuple(w.register(type) for _ in range(place.spec.length(modifiers))))


def keep(w: Writer, operand: AnyOperand) -> None:
    """Store a destination in the output record."""
    if isinstance(operand, Register):
        w.store(operand)
    elif isinstance(operand, Vector):
        registers = [e for e in operand.elements if isinstance(e, Register)]
        where = w.output_field(registers[0].type, len(registers))
        for i, register in enumerate(registers):
            w.store(register, where, i)


def plain(w: Writer, row: Instruction, modifiers: Mapping[str, str], **operands: AnyOperand) -> None:
    """Load every source, run the instruction, store every destination. `given` operands are used as they are."""
    sources = {o.name: operands.get(o.name) or make_source(w, row, o, modifiers) for o in row.sources}
    destinations = {o.name: make_destination(w, row, o, modifiers) for o in row.destinations}
    w.test(row.text(modifiers, {**destinations, **sources}))
    for operand in destinations.values():
        keep(w, operand)


def batches(row: Instruction) -> Iterator[Batch]:
    """The probes of a row, in batches of one need."""
    from tests.ptxgen.isa.probe_forms import forms

    groups: dict[tuple[Need, int], list[tuple[dict[str, str], Form]]] = {}
    for modifiers in sensible(row):
        need = row.need(modifiers)
        for form in forms(row, modifiers):
            number = 0
            while len(groups.get((need, number), ())) >= BATCH:
                number += 1
            groups.setdefault((need, number), []).append((modifiers, form))
    for (need, _), members in groups.items():
        yield _batch(row, need, members)


def all_batches() -> Iterator[Batch]:
    """Every probe of the table."""
    for row in ROWS:
        yield from batches(row)


_START = (
    "ld.param.u64 %out, [out];",
    "ld.param.u64 %in, [in];",
    "cvta.to.global.u64 %out, %out;",
    "cvta.to.global.u64 %in, %in;",
    "mov.u32 %lane, %tid.x;",
    "mov.u32 %block, %ctaid.x;",
    "mov.u32 %threads, %ntid.x;",
    "mad.lo.u32 %i, %block, %threads, %lane;",
)


def _batch(row: Instruction, need: Need, members: list[tuple[dict[str, str], Form]]) -> Batch:
    w = Writer()
    marks = []
    for modifiers, form in members:
        first_in, first_out = len(w.inputs), len(w.outputs)
        form(w, row, modifiers)
        marks.append((modifiers, w.marked, tuple(w.inputs[first_in:]), tuple(w.outputs[first_out:])))
    in_bytes, out_bytes = (max(32, -(-size // 32) * 32) for size in (w.in_bytes, w.out_bytes))
    head = [
        *w.module,
        f".visible .entry {ENTRY}(.param .u64 out, .param .u64 in, .param .u64 word)",
        "{",
        ".reg .u64 %out, %in;",
        ".reg .u32 %i, %lane, %block, %threads;",
        *w.registers,
        *w.local,
        *_START,
        f"mad.wide.u32 %in, %i, {in_bytes}, %in;",
        f"mad.wide.u32 %out, %i, {out_bytes}, %out;",
    ]
    body = "\n".join([*head, *w.lines, "ret;", "}", ""])
    before = 3 + len(head) + 1
    probes = tuple(
        Probe(row, modifiers, w.lines[mark], before + mark, inputs, outputs) for modifiers, mark, inputs, outputs in marks
    )
    return Batch(row, need, probes, body, in_bytes, out_bytes)
