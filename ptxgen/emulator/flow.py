"""A kernel as basic blocks: points where the lanes of a warp must meet, registers that live across blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ptxgen.emulator.calls import Inlined
from ptxgen.emulator.program import SINK, Negated, ParsedLabel, Program, Step, Variable
from ptxgen.isa.effects import BRANCHES, ENDS, Effect
from ptxgen.isa.instructions import row_of
from ptxgen.isa.operands import Address, Immediate, Register, Vector
from ptxgen.isa.rows.control import ret
from ptxgen.isa.rows.move import mov
from ptxgen.types import PRED

CARRY = Register("%carry", PRED)
_CLOSING = BRANCHES | ENDS
_STOPPING = _CLOSING | {Effect.BLOCK_BARRIER, Effect.SLEEP}
"""After which lanes may go on later, or elsewhere."""


@dataclass
class FlowBlock:
    """Straight-line code. `end` is the branch, exit, trap, barrier or sleep that closes it; None where it falls through. A
    block that is a `meet` has no code: lanes that diverged wait there for each other. One after a barrier that counts has that
    as `received`: the lanes that waited begin with its result. One that `waits` begins with a wait for the grids before;
    one that `frees` ends with letting the next one start."""

    index: int
    steps: list[Step] = field(default_factory=list)
    end: Step | None = None
    meet: bool = False
    received: Step | None = None
    waits: bool = False
    frees: bool = False
    targets: tuple[int, ...] = ()
    live_in: set[str] = field(default_factory=set)
    live_out: set[str] = field(default_factory=set)

    @property
    def instructions(self) -> list[Step]:
        """All steps, the last one among them."""
        return [*self.steps, *([self.end] if self.end else [])]

    @property
    def is_empty(self) -> bool:
        """Whether nothing happens in it yet."""
        return not self.steps and not self.meet and self.received is None

    @property
    def falls_through(self) -> bool:
        """Whether some lane may go on to the next block."""
        return self.end is None or self.end.guard is not None or self.end.row.effect not in _CLOSING

    @property
    def following(self) -> set[int]:
        """The numbers of the blocks that a lane may go on to."""
        return {*self.targets, *([self.index + 1] if self.falls_through else [])}


@dataclass
class Flow:
    """An entry's blocks, in the order of the text. `parameters` are the bytes of each of its own. `constants` are registers
    that hold one number only, `loose` those in which a NaN may be any, `crossing` those that live from one block to another."""

    blocks: list[FlowBlock]
    parameters: dict[str, int]
    registers: dict[str, Register]
    variables: dict[str, Variable]
    constants: dict[str, Immediate]
    loose: frozenset[str]
    crossing: list[Register]


def flow(program: Program, entry: str) -> Flow:
    """The blocks of an entry of the program."""
    code = Inlined(program, entry)
    blocks = _blocks(code.items)
    constants = _constants(blocks)
    _liveness(blocks)
    crossing = {name for b in blocks for name in b.live_in} - set(constants)
    everyone = {**code.registers, CARRY.name: CARRY}
    crossing_registers = [everyone[name] for name in sorted(crossing) if name in everyone]
    parameters = {parameter.name: parameter.size for parameter in program.functions[entry].parameters}
    return Flow(blocks, parameters, code.registers, code.variables, constants, _loose(blocks, everyone), crossing_registers)


def _blocks(items: list[Step | ParsedLabel]) -> list[FlowBlock]:
    blocks = [FlowBlock(0)]
    labels: dict[str, int] = {}
    diverges = any(isinstance(i, Step) and i.guard is not None and i.row.effect in _CLOSING for i in items)
    diverges = diverges or any(isinstance(i, Step) and i.row.effect is Effect.INDEXED_BRANCH for i in items)

    def start() -> FlowBlock:
        blocks.append(FlowBlock(len(blocks)))
        return blocks[-1]

    met = False
    for item in items:
        current = blocks[-1]
        if isinstance(item, ParsedLabel):
            if not current.is_empty:
                current = start()
            labels[item.name] = current.index
            met = False
            continue
        if item.row.collective and (item.row.effect is Effect.WARP_BARRIER or (diverges and not met)):
            if not current.is_empty:
                current = start()
            current.meet = met = True
            start()
        if item.row.waits_for_grids(item.modifiers):
            if not blocks[-1].is_empty:
                start()
            blocks[-1].waits = True
        if item.row.effect in _STOPPING:
            blocks[-1].end = item
            start().received = item if _gives_at_barrier(item) else None
            met = False
        else:
            blocks[-1].steps.append(item)
            if item.row.lets_next_grid_start(item.modifiers):
                blocks[-1].frees = True
                start()
    if blocks[-1].falls_through:
        last = items[-1] if items else None
        blocks[-1].end = Step(row_of(ret), {}, {}, None, last.line if last else 0, None)
    for block in blocks:
        if block.end is not None:
            block.targets = tuple(labels[name] for name in block.end.targets)
    return blocks


def _gives_at_barrier(step: Step) -> bool:
    """Whether its result is there once the barrier opens, so in the block after it."""
    return step.row.effect is Effect.BLOCK_BARRIER and bool(step.row.destinations)


# Registers
def reads_and_writes(step: Step) -> tuple[set[str], set[str]]:
    """The names of the registers that an instruction reads and writes, its guard and the carry flag among them."""
    reads: set[str] = set()
    writes: set[str] = set()
    if step.guard is not None:
        reads.add(step.guard.register.name)
    if step.row.reads_carry:
        reads.add(CARRY.name)
    if step.row.writes_carry:
        writes.add(CARRY.name)
    for place in step.row.operands:
        operand = step.operands.get(place.name)
        into = writes if place.is_destination else reads
        if isinstance(operand, Register):
            into.add(operand.name)
        elif isinstance(operand, Vector):
            names = {x.name for x in operand.elements if isinstance(x, Register)}
            into.update(names)
            if place.name == step.row.updates:
                writes.update(names)
        elif isinstance(operand, Negated):
            reads.add(operand.register.name)
        elif isinstance(operand, Address) and isinstance(operand.base, Register):
            reads.add(operand.base.name)
    writes.discard(SINK)
    return reads, writes


def _liveness(blocks: list[FlowBlock]) -> None:
    uses: list[set[str]] = []
    definitions: list[set[str]] = []
    for block in blocks:
        used: set[str] = set()
        defined: set[str] = set()
        if block.received is not None:  # lanes that did not wait keep what was there
            used |= reads_and_writes(block.received)[1]
            defined |= used
        for step in block.instructions:
            reads, writes = reads_and_writes(step)
            if step is block.end and _gives_at_barrier(step):
                writes = set()
            if step.guard is not None:
                reads |= writes  # the lanes whose guard is false keep what was there
            used |= reads - defined
            defined |= writes
        uses.append(used)
        definitions.append(defined)
        block.live_in = set(used)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            after: set[str] = set()
            for target in block.targets:
                after |= blocks[target].live_in
            if block.falls_through and block.index + 1 < len(blocks):
                after |= blocks[block.index + 1].live_in
            before = uses[block.index] | (after - definitions[block.index])
            # A register written by some lanes only must survive in the others.
            if after != block.live_out or before != block.live_in:
                block.live_out, block.live_in = after, before
                changed = True


def _constants(blocks: list[FlowBlock]) -> dict[str, Immediate]:
    constants: dict[str, Immediate] = {}
    counts: Counter[str] = Counter()
    for step in (step for block in blocks for step in block.instructions):
        counts.update(reads_and_writes(step)[1])
        source, target = step.operands.get("a"), step.operands.get("d")
        moves = step.row.meaning is mov and step.guard is None
        if moves and isinstance(source, Immediate) and isinstance(target, Register):
            constants[target.name] = source
    return {name: value for name, value in constants.items() if counts[name] == 1}


def _loose(blocks: list[FlowBlock], registers: dict[str, Register]) -> frozenset[str]:
    """f32 registers that only arithmetic and constants write: which NaN they hold shows nowhere but where it is looked at."""
    good: dict[str, bool] = {}
    for block in blocks:
        for step in block.steps:
            _, writes = reads_and_writes(step)
            source = step.operands.get("a")
            constant = step.row.meaning is mov and isinstance(source, Immediate) and source.type.is_float  # NaN are bits
            fine = step.row.canonical_nan or constant
            for name in writes:
                good[name] = good.get(name, True) and fine
    return frozenset(n for n, fine in good.items() if fine and n in registers and registers[n].type.name == "f32")
