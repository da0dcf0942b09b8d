"""A kernel as basic blocks: calls inlined, points where the lanes of a warp must meet, registers that live across blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from ptxgen.emulator.program import (
    Call,
    Function,
    Guard,
    Label,
    Negated,
    ParsedOperand,
    Program,
    Step,
    SymbolAddress,
    Variable,
)
from ptxgen.errors import ParseError
from ptxgen.isa.effects import BRANCHES, ENDS, Effect
from ptxgen.isa.instructions import row_of
from ptxgen.isa.operands import Address, Immediate, LabelRef, Register, Symbol, Vector
from ptxgen.isa.rows.control import bra, ret
from ptxgen.isa.rows.move import mov
from ptxgen.types import PRED

CARRY = Register("%carry", PRED)
_CLOSING = BRANCHES | ENDS
_MAX_INLINED = 100_000
_MAX_DEPTH = 100  # calls within calls


@dataclass
class Block:
    """Straight-line code. `end` is the branch, exit, trap or barrier that closes it; None where it falls through. A block that
    is a `meet` has no code: lanes that diverged wait there for each other."""

    index: int
    steps: list[Step] = field(default_factory=list)
    end: Step | None = None
    meet: bool = False
    targets: tuple[int, ...] = ()
    live_in: set[str] = field(default_factory=set)
    live_out: set[str] = field(default_factory=set)

    @property
    def instructions(self) -> list[Step]:
        """All steps, the last one among them."""
        return [*self.steps, *([self.end] if self.end else [])]

    @property
    def falls_through(self) -> bool:
        """Whether some lane may go on to the next block."""
        return self.end is None or self.end.guard is not None or self.end.row.effect not in _CLOSING


@dataclass
class Flow:
    blocks: list[Block]
    registers: dict[str, Register]
    variables: dict[str, Variable]
    constants: dict[str, Immediate]
    loose: frozenset[str]
    crossing: list[Register]


def flow(program: Program, entry: str) -> Flow:
    """The blocks of an entry of the program."""
    function = program.functions[entry]
    _check_calls(program, entry)
    registers, variables = dict(function.registers), dict(function.variables)
    items = list(_inline(program, function, registers, variables, count(1)))
    lists = dict(function.branch_lists)
    for callee in program.functions.values():
        lists.update(callee.branch_lists)
    blocks = _blocks(items, lists)
    constants = _constants(blocks)
    _liveness(blocks)
    crossing = {name for b in blocks for name in b.live_in} - set(constants)
    everyone = {**registers, CARRY.name: CARRY}
    crossing_registers = [everyone[name] for name in sorted(crossing) if name in everyone]
    return Flow(blocks, registers, variables, constants, _loose(blocks, everyone), crossing_registers)


# Calls
def _check_calls(program: Program, entry: str) -> None:
    """ParseError where `entry` cannot have its calls inlined, before any is."""
    measured: dict[str, tuple[int, int]] = {}

    def measure(function: Function, stack: tuple[str, ...]) -> tuple[int, int]:
        """Instructions with all calls inlined, and how deep those are within each other."""
        size = depth = 0
        for item in function.items:
            size += 1
            if isinstance(item, Call):
                callee = program.functions.get(item.callee)
                if callee is None or not callee.is_defined:
                    raise ParseError(f"call of {item.callee}, which this module does not define", item.line)
                if item.callee in stack:
                    raise ParseError(f"{item.callee} calls itself, which is not emulated", item.line)
                if item.callee not in measured and len(stack) <= _MAX_DEPTH:
                    measured[item.callee] = measure(callee, (*stack, item.callee))
                inner_size, inner_depth = measured.get(item.callee, (0, _MAX_DEPTH))
                size, depth = size + inner_size, max(depth, inner_depth + 1)
            if depth > _MAX_DEPTH:
                raise ParseError(f"{stack[0]} has more than {_MAX_DEPTH} calls within each other", item.line)
            if size > _MAX_INLINED:
                raise ParseError(f"{stack[0]} has more than {_MAX_INLINED} instructions with its calls inlined", item.line)
        return size, depth

    measure(program.functions[entry], (entry,))


def _inline(
    program: Program,
    function: Function,
    registers: dict[str, Register],
    variables: dict[str, Variable],
    counter: Iterator[int],
) -> Iterator[Step | Label]:
    for item in function.items:
        if isinstance(item, Call):
            yield from _body(program, function, item, registers, variables, counter)
        else:
            yield item


def _body(
    program: Program,
    caller: Function,
    call: Call,
    registers: dict[str, Register],
    variables: dict[str, Variable],
    counter: Iterator[int],
) -> Iterator[Step | Label]:
    callee = program.functions[call.callee]
    suffix = f"@{next(counter)}"
    after = f"return{suffix}"
    renaming = _Renaming(suffix, callee)
    for register in callee.registers.values():
        registers[register.name + suffix] = Register(register.name + suffix, register.type)
    for variable in callee.variables.values():
        variables[variable.name + suffix] = replace(variable, name=variable.name + suffix)
    if len(call.arguments) != len(callee.parameters):
        raise ParseError(f"{call.callee} takes {len(callee.parameters)} arguments, got {len(call.arguments)}", call.line)
    if len(call.results) != len(callee.results):
        raise ParseError(f"{call.callee} returns {len(callee.results)} values, got places for {len(call.results)}", call.line)
    if call.guard is not None:
        yield _jump(after, Guard(call.guard.register, not call.guard.negated), call)
    copies_out: list[tuple[Register, Register]] = []
    for parameter, argument in zip(callee.parameters, call.arguments, strict=True):
        if parameter.register is not None:
            _check_width(parameter.register, argument, call)
            yield _move(Register(parameter.register.name + suffix, parameter.register.type), argument, call)
        elif isinstance(argument, SymbolAddress):
            renaming.symbols[parameter.name] = argument.name
        else:
            raise ParseError(f"argument for {parameter.name} must be a .param variable", call.line)
    for parameter, name in zip(callee.results, call.results, strict=True):
        if parameter.register is not None:
            _check_width(parameter.register, caller.registers.get(name), call)
            copies_out.append((caller.registers[name], Register(parameter.register.name + suffix, parameter.register.type)))
        else:
            renaming.symbols[parameter.name] = name
    for item in _inline(program, callee, registers, variables, counter):
        if isinstance(item, Label):
            yield Label(item.name + suffix, item.line)
        elif item.row.effect is Effect.RETURN:
            yield _jump(after, renaming.guard(item.guard), item)
        else:
            yield renaming.step(item)
    yield Label(after, call.line)
    for target, source in copies_out:
        yield _move(target, source, call)


def _check_width(register: Register, argument: ParsedOperand | None, call: Call) -> None:
    if isinstance(argument, Immediate) or (isinstance(argument, Register) and argument.type.bits == register.type.bits):
        return
    got = f"{argument}, which is {argument.type}" if isinstance(argument, Register) else "something that is no register"
    raise ParseError(f"call of {call.callee}: {register} is {register.type}, got {got}", call.line)


class _Renaming:
    def __init__(self, suffix: str, callee: Function) -> None:
        self.suffix = suffix
        self.own = callee.registers  # those of what it calls are renamed already
        self.symbols = {name: name + suffix for name in callee.variables}

    def guard(self, guard: Guard | None) -> Guard | None:
        return None if guard is None else Guard(self.register(guard.register), guard.negated)

    def register(self, register: Register) -> Register:
        return Register(register.name + self.suffix, register.type) if register.name in self.own else register

    def operand(self, operand: ParsedOperand) -> ParsedOperand:
        if isinstance(operand, Register):
            return self.register(operand)
        if isinstance(operand, Negated):
            return Negated(self.register(operand.register))
        if isinstance(operand, Vector):
            return Vector(tuple(self.register(x) if isinstance(x, Register) else x for x in operand.elements))
        if isinstance(operand, Address):
            if isinstance(operand.base, Register):
                return Address(self.register(operand.base), operand.offset)
            if isinstance(operand.base, Symbol):
                return Address(Symbol(self.symbols.get(operand.base.name, operand.base.name)), operand.offset)
        if isinstance(operand, SymbolAddress):
            return SymbolAddress(self.symbols.get(operand.name, operand.name), operand.offset)
        if isinstance(operand, LabelRef):
            return LabelRef(operand.name + self.suffix)
        return operand

    def step(self, step: Step) -> Step:
        operands = {name: self.operand(o) for name, o in step.operands.items()}
        return replace(step, operands=operands, guard=self.guard(step.guard))


def _jump(target: str, guard: Guard | None, like: Step | Call) -> Step:
    return Step(row_of(bra), {}, {"target": LabelRef(target)}, guard, like.line, like.source)


def _move(target: Register, source: ParsedOperand, call: Call) -> Step:
    modifiers = {"type": "pred" if target.type == PRED else f"b{target.type.bits}"}
    return Step(row_of(mov), modifiers, {"d": target, "a": source}, call.guard, call.line, call.source)


# Blocks
def _blocks(items: list[Step | Label], lists: dict[str, tuple[str, ...]]) -> list[Block]:
    blocks = [Block(0)]
    labels: dict[str, int] = {}
    diverges = any(isinstance(i, Step) and i.guard is not None and i.row.effect in _CLOSING for i in items)
    diverges = diverges or any(isinstance(i, Step) and i.row.effect is Effect.INDEXED_BRANCH for i in items)

    def start() -> Block:
        blocks.append(Block(len(blocks)))
        return blocks[-1]

    met = False
    for item in items:
        current = blocks[-1]
        if isinstance(item, Label):
            if current.steps or current.meet:
                current = start()
            if item.name in labels:
                raise ParseError(f"label {item.name} is defined twice", item.line)
            labels[item.name] = current.index
            met = False
            continue
        if item.row.collective and (item.row.effect is Effect.WARP_BARRIER or (diverges and not met)):
            if current.steps or current.meet:
                current = start()
            current.meet = met = True
            start()
        if item.row.effect in _CLOSING or item.row.effect is Effect.BLOCK_BARRIER:
            blocks[-1].end = item
            start()
            met = False
        else:
            blocks[-1].steps.append(item)
    if blocks[-1].falls_through:
        last = items[-1] if items else None
        blocks[-1].end = Step(row_of(ret), {}, {}, None, last.line if last else 0, None)
    _resolve(blocks, labels, lists)
    return blocks


def _resolve(blocks: list[Block], labels: dict[str, int], lists: dict[str, tuple[str, ...]]) -> None:
    for block in blocks:
        end = block.end
        if end is None or end.row.effect not in BRANCHES:
            continue
        reference = next(o for o in end.operands.values() if isinstance(o, LabelRef))
        names: tuple[str, ...] = (reference.name,)
        if end.row.effect is Effect.INDEXED_BRANCH:
            stem, _, suffix = reference.name.partition("@")
            if stem not in lists:
                raise ParseError(f"{stem} is no list of branch targets", end.line)
            names = tuple(n + (f"@{suffix}" if suffix else "") for n in lists[stem])
        missing = [n for n in names if n not in labels]
        if missing:
            raise ParseError(f"branch to {missing[0]}, which is not defined", end.line)
        block.targets = tuple(labels[n] for n in names)


# Registers
def reads_and_writes(step: Step) -> tuple[set[str], set[str]]:
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
            into.update(x.name for x in operand.elements if isinstance(x, Register))
        elif isinstance(operand, Negated):
            reads.add(operand.register.name)
        elif isinstance(operand, Address) and isinstance(operand.base, Register):
            reads.add(operand.base.name)
    writes.discard("_")
    return reads, writes


def _liveness(blocks: list[Block]) -> None:
    uses: list[set[str]] = []
    definitions: list[set[str]] = []
    for block in blocks:
        used: set[str] = set()
        defined: set[str] = set()
        for step in block.instructions:
            reads, writes = reads_and_writes(step)
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


def _constants(blocks: list[Block]) -> dict[str, Immediate]:
    constants: dict[str, Immediate] = {}
    counts: Counter[str] = Counter()
    for step in (step for block in blocks for step in block.instructions):
        counts.update(reads_and_writes(step)[1])
        source, target = step.operands.get("a"), step.operands.get("d")
        moves = step.row.meaning is mov and step.guard is None
        if moves and isinstance(source, Immediate) and isinstance(target, Register):
            constants[target.name] = source
    return {name: value for name, value in constants.items() if counts[name] == 1}


def _loose(blocks: list[Block], registers: dict[str, Register]) -> frozenset[str]:
    """f32 registers that only arithmetic and constants write: which NaN they hold shows nowhere but where it is looked at."""
    good: dict[str, bool] = {}
    for block in blocks:
        for step in block.steps:
            _, writes = reads_and_writes(step)
            fine = step.row.canonical_nan or (step.row.meaning is mov and isinstance(step.operands.get("a"), Immediate))
            for name in writes:
                good[name] = good.get(name, True) and fine
    return frozenset(n for n, fine in good.items() if fine and n in registers and registers[n].type.name == "f32")
