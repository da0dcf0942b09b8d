"""Loops of a function and how often they run, as far as the instructions say. Reads the builder's loops (flow.py); a loop
written otherwise is found too, but its passes are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ptxgen.dsl.ir import Op
from ptxgen.isa.operands import AnyOperand, Immediate, Register
from ptxgen.isa.rows.compare import setp
from ptxgen.isa.rows.integer import add
from ptxgen.verify.cfg import Graph


@dataclass(frozen=True)
class NaturalLoop:
    """Blocks of the graph that run again and again. `passes` is how often at most (None: not known before the launch), `exact`
    that it is the same in every thread."""

    header: int
    blocks: frozenset[int]
    passes: int | None
    exact: bool


def find_loops(graph: Graph) -> tuple[NaturalLoop, ...]:
    """The natural loops, in the order of the text; loops with one header are one loop."""
    place = {number: index for index, number in enumerate(graph.order)}
    bodies: dict[int, set[int]] = {}
    ends: dict[int, int] = {}
    for number in graph.order:
        for successor in graph.blocks[number].successors:
            if place[successor] <= place[number]:
                bodies.setdefault(successor, {successor}).update(_reaching(graph, number, successor))
                ends[successor] = number
    return tuple(
        NaturalLoop(header, frozenset(blocks), *_passes(graph, frozenset(blocks), ends[header]))
        for header, blocks in sorted(bodies.items())
    )


def innermost(loops: tuple[NaturalLoop, ...]) -> tuple[NaturalLoop, ...]:
    """Those that hold no other."""
    return tuple(loop for loop in loops if not any(other.header in loop.blocks for other in loops if other is not loop))


def executions(graph: Graph, loops: tuple[NaturalLoop, ...]) -> dict[int, int]:
    """How often each block runs if every branch into it is taken; a loop of unknown passes counts as one."""
    times = dict.fromkeys(graph.order, 1)
    for loop in loops:
        for number in loop.blocks:
            times[number] *= loop.passes or 1
    return times


def _reaching(graph: Graph, end: int, header: int) -> set[int]:
    """The blocks from which `end` is reached without passing the header."""
    reaching: set[int] = set()
    stack = [end]
    while stack:
        number = stack.pop()
        if number != header and number not in reaching:
            reaching.add(number)
            stack.extend(graph.predecessors[number])
    return reaching


def _passes(graph: Graph, blocks: frozenset[int], end: int) -> tuple[int | None, bool]:
    """From `i = start; ...; i += step; branch back if i < stop`, all but `start` constants. A start that differs from thread to
    thread is taken as 0."""
    unknown = (None, False)
    writers: dict[str, list[tuple[int, Op]]] = defaultdict(list)
    for number in graph.order:
        for op in graph.blocks[number].ops:
            for register in op.written:
                writers[register.name].append((number, op))

    def only_writer(operand: AnyOperand | None, meaning: Callable[..., Any]) -> Op | None:
        ops = [op for _, op in writers[operand.name]] if isinstance(operand, Register) else []
        return ops[0] if len(ops) == 1 and ops[0].row.meaning is meaning else None

    branch = graph.blocks[end].branch
    test = only_writer(branch.guard, setp) if branch is not None and not branch.guard_negated else None
    if test is None or test.modifiers["cmp"] != "lt":
        return unknown
    i, stop = test.operands["a"], test.operands["b"]
    if not isinstance(i, Register) or not isinstance(stop, Immediate):
        return unknown
    inside = [op for number, op in writers[i.name] if number in blocks]
    before = [op for number, op in writers[i.name] if number not in blocks]
    if len(inside) != 1 or len(before) != 1:
        return unknown
    advance = only_writer(inside[0].operands.get("a"), add)
    start = before[0].operands.get("a")
    if advance is None or advance.operands["a"] != i or not isinstance(step := advance.operands["b"], Immediate):
        return unknown
    first = int(start.value) if isinstance(start, Immediate) else 0
    return max(1, -(-(int(stop.value) - first) // int(step.value))), isinstance(start, Immediate)
