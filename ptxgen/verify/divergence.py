"""Which registers and which instructions of a function differ between the threads of a block: a conservative analysis that
the verifier builds on. How far something differs is a `Level`, and every level above UNIFORM comes with its cause.

Data: a value is at the level of the operands it is computed from; a load is at the level of its address, because threads that
read one address get one value. Control: what is written between a branch on a differing condition and the place where its
paths join differs too, since the threads may arrive with values of different passes or paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod

from ptxgen.dsl.ir import Function, Op
from ptxgen.isa.effects import LOADS, UNORDERED_READS, Effect, LaneResult
from ptxgen.isa.operands import Address, AnyOperand, Immediate, Register, Special, Vector
from ptxgen.target import WARP_SIZE, WARPGROUP_SIZE
from ptxgen.verify.cfg import Graph

_CARRY = "the carry flag"


class Level(IntEnum):
    """Between which threads a value may differ, or which threads may not arrive."""

    UNIFORM = 0  # the same in all threads of the block
    WARPGROUP = 1  # the same in the threads of a warpgroup
    WARP = 2  # the same in the threads of a warp
    DIVERGENT = 3  # may differ from lane to lane


@dataclass(frozen=True)
class Cause:
    """How far something differs, and why, in words."""

    level: Level
    why: str = ""


_UNIFORM = Cause(Level.UNIFORM)
_SIZES = {Level.WARPGROUP: WARPGROUP_SIZE, Level.WARP: WARP_SIZE}
"""Threads between which a value of the level does not differ."""


@dataclass
class Divergence:
    """The result. `values` holds the registers that differ; `control` the blocks of the graph that some threads may not reach
    together, with the branch that separates them."""

    function: Function
    graph: Graph
    values: dict[str, Cause] = field(default_factory=dict)
    control: dict[int, tuple[Cause, Op]] = field(default_factory=dict)

    def of(self, operand: AnyOperand | None) -> Cause:
        """The level of an operand: a vector's is its highest element's, an address's its base's."""
        if isinstance(operand, Register):
            return self.values.get(operand.name, _UNIFORM)
        if isinstance(operand, Special):
            return _special(operand.name, self.function.max_threads)
        if isinstance(operand, Address):
            return self.of(operand.base)
        if isinstance(operand, Vector):
            return _highest([self.of(element) for element in operand.elements])
        return _UNIFORM


def analyse(function: Function, graph: Graph) -> Divergence:
    """Levels of every register and block, to a fixed point from UNIFORM upwards."""
    result = Divergence(function, graph)
    groups = _groups(function)
    changed = True
    while changed:
        changed = False
        for number in graph.order:
            around = result.control[number][0] if number in result.control else _UNIFORM
            for op in graph.blocks[number].ops:
                changed |= _transfer(result, op, around, groups)
            branch = graph.blocks[number].branch
            if branch is not None:
                changed |= _separate(result, number, branch)
    return result


def _transfer(result: Divergence, op: Op, around: Cause, groups: Mapping[int, Level]) -> bool:
    """Raise the destinations of an instruction to what it computes. True if any went up."""
    names = [register.name for register in op.written]
    if op.row.writes_carry:
        names.append(_CARRY)
    values = result.values
    names = [name for name in names if name not in values or values[name].level is not Level.DIVERGENT]
    if not names:
        return False
    group = groups.get(id(op))
    cause = _computed(result, op) if group is None else Cause(group, f"the {group.name.lower()}'s number")
    cause = _highest([cause, around, result.of(op.guard)])
    if prod(result.function.max_threads) <= _SIZES.get(cause.level, 0):
        return False  # a block of one warp, or warpgroup
    changed = False
    for name in names:
        if cause.level > values.get(name, _UNIFORM).level:
            values[name] = cause
            changed = True
    return changed


def _computed(result: Divergence, op: Op) -> Cause:
    cause = _highest([result.of(op.operands.get(place.name)) for place in op.row.sources])
    row = op.row
    if row.reads_carry:
        cause = _highest([cause, result.values.get(_CARRY, _UNIFORM)])
    if row.effect is Effect.BLOCK_BARRIER:  # what it gives, it gives to all threads that it waits for
        return _UNIFORM
    place = f"{op.opcode} at {op.where}"
    if row.lanes is LaneResult.SAME and result.of(op.operands.get("mask")).level <= Level.WARP:
        return Cause(Level.WARP, place)
    if row.lanes is LaneResult.SHUFFLED:
        return Cause(min(cause.level, Level.WARP), cause.why) if _from_one_lane(result, op) else cause
    if row.lanes is not LaneResult.OWN or row.effect is Effect.ATOMIC:
        return Cause(Level.DIVERGENT, place)
    if row.effect in LOADS and (op.modifiers.get("order") in UNORDERED_READS or op.modifiers.get("space") == "local"):
        return Cause(Level.DIVERGENT, place)
    return cause


def _separate(result: Divergence, number: int, branch: Op) -> bool:
    """Mark what only some threads run after a conditional branch. True if anything went up."""
    around = result.control[number][0] if number in result.control else _UNIFORM
    cause = _highest([result.of(branch.guard), *(result.of(o) for o in branch.operands.values()), around])
    if cause.level is Level.UNIFORM:
        return False
    changed = False
    for block in result.graph.influenced(number):
        if block not in result.control or cause.level > result.control[block][0].level:
            result.control[block] = (cause, branch)
            changed = True
    return changed


def _special(name: str, block: tuple[int, int, int]) -> Cause:
    """Special registers (PTX ISA 10), for a block of this size."""
    register, _, axis = name.partition(".")
    cause = Cause(Level.DIVERGENT, name)
    if register == "%tid":
        position = "xyz".index(axis)
        if block[position] == 1:
            return _UNIFORM
        level = _level(prod(block[:position]))  # threads that follow each other share the coordinate
        return Cause(level, name) if level is not None else cause
    if register == "%warpid":
        return Cause(Level.WARP, name)
    varying = register == "%laneid" or register.startswith(("%lanemask", "%clock", "%globaltimer"))
    return cause if varying else _UNIFORM


def _level(sharing: int) -> Level | None:
    """How far a number differs that `sharing` threads in a row have in common; None from lane to lane."""
    return next((level for level, size in _SIZES.items() if sharing and sharing % size == 0), None)


def _groups(function: Function) -> Mapping[int, Level]:
    """The instructions (by id) that compute the number of a warp or warpgroup, or a fraction of it, from %tid.x of a
    one-dimensional block."""
    if function.max_threads[1:] != (1, 1):
        return {}
    writers: dict[str, list[Op]] = {}
    for op in function.ops:
        for register in op.written:
            writers.setdefault(register.name, []).append(op)
    from ptxgen.isa.rows.integer import (
        div,  # late: a function has been written, so the table is there; kernels are listed without
    )
    from ptxgen.isa.rows.logic import shr
    from ptxgen.isa.rows.move import mov

    def sharing(op: Op) -> int:
        """How many threads in a row get the same number, if it is %tid.x divided by that; else 0."""
        source, count = op.operands.get("a"), op.operands.get("b")
        if op.row.meaning is mov:
            return int(isinstance(source, Special) and source.name == "%tid.x")
        if not isinstance(source, Register) or not isinstance(count, Immediate) or count.type.is_float or count.value <= 0:
            return 0
        factor = int(count.value) if op.row.meaning is div else 1 << int(count.value) if op.row.meaning is shr else 0
        origin = writers.get(source.name, []) if factor else []
        return factor * sharing(origin[0]) if len(origin) == 1 and origin[0] is not op else 0

    return {id(op): level for op in function.ops if op.row.meaning in (div, shr) and (level := _level(sharing(op))) is not None}


def _from_one_lane(result: Divergence, op: Op) -> bool:
    """A shuffle in which every lane reads the same lane, of all 32."""
    clamp = op.operands["c"]
    whole = isinstance(clamp, Immediate) and clamp.value == WARP_SIZE - 1
    return op.modifiers["mode"] == "idx" and whole and result.of(op.operands["b"]).level <= Level.WARP


def _highest(causes: list[Cause]) -> Cause:
    return max(causes, key=lambda cause: cause.level, default=_UNIFORM)
