"""The control flow graph of a function: basic blocks, who follows whom, post-dominators. Nothing here judges a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ptxgen.dsl.ir import Function, Label, Op
from ptxgen.isa.effects import BRANCHES, ENDS, Effect
from ptxgen.isa.operands import LabelRef


@dataclass(frozen=True)
class BasicBlock:
    """Instructions that run one after the other; only the last one may branch."""

    ops: tuple[Op, ...]
    successors: tuple[int, ...]
    falls_off: bool = False  # runs past the last line of the function

    @property
    def branch(self) -> Op | None:
        """The conditional branch (or guarded end) at the end, if there is one."""
        last = self.ops[-1] if self.ops else None
        return last if last is not None and last.guard is not None and last.row.effect in BRANCHES | ENDS else None

    @property
    def ends(self) -> bool:
        """Whether a thread may end here, and the others go on. A trap ends them all, so nobody waits for who took that way."""
        effect = self.ops[-1].row.effect if self.ops else None
        return effect is not Effect.TRAP and (effect in ENDS or not self.successors)


@dataclass(frozen=True)
class Graph:
    """Basic blocks by number; block 0 is the entry."""

    blocks: tuple[BasicBlock, ...]

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        before: list[list[int]] = [[] for _ in self.blocks]
        for number, block in enumerate(self.blocks):
            for successor in block.successors:
                before[successor].append(number)
        return tuple(map(tuple, before))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The blocks that can be reached, each after its predecessors but for loops (reverse postorder)."""
        seen = {0}
        postorder: list[int] = []
        stack = [(0, iter(self.blocks[0].successors))]
        while stack:
            number, rest = stack[-1]
            following = next((s for s in rest if s not in seen), None)
            if following is None:
                postorder.append(number)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.blocks[following].successors)))
        return tuple(reversed(postorder))

    @cached_property
    def joins(self) -> dict[int, int | None]:
        """For each reachable block the nearest one that every path from it to the end passes (its immediate post-dominator);
        None if there is none, e.g. because threads end on different paths."""
        end = len(self.blocks)  # a virtual block after every `ret`
        everything = (1 << (end + 1)) - 1
        after = dict.fromkeys(self.order, everything)  # post-dominators as bit sets
        after[end] = 1 << end
        changed = True
        while changed:
            changed = False
            for number in reversed(self.order):
                block = self.blocks[number]
                common = everything
                for successor in block.successors:
                    common &= after[successor]
                if block.ends:
                    common &= after[end]
                new = common | 1 << number
                if new != after[number]:
                    after[number], changed = new, True
        # Post-dominators of a block form a chain; the nearest one has all the others behind it.
        strict = {number: [m for m in self.order if m != number and after[number] >> m & 1] for number in self.order}
        return {
            number: max(strict[number], key=lambda m: after[m].bit_count(), default=None) if number in self._ending else None
            for number in self.order
        }

    @cached_property
    def _ending(self) -> frozenset[int]:
        """The blocks from which the end can be reached: not those of a loop that nothing leaves."""
        return _reached([number for number, block in enumerate(self.blocks) if block.ends], self.predecessors)

    def influenced(self, number: int) -> frozenset[int]:
        """The blocks that run, or run again, depending on the branch of block `number`."""
        following = tuple(block.successors for block in self.blocks)
        return _reached(list(following[number]), following, self.joins[number])


def _reached(stack: list[int], following: Sequence[Sequence[int]], end: int | None = None) -> frozenset[int]:
    """The blocks that can be reached from those on the stack, up to and without the block `end`."""
    reached: set[int] = set()
    while stack:
        number = stack.pop()
        if number != end and number not in reached:
            reached.add(number)
            stack.extend(following[number])
    return frozenset(reached)


def graph(function: Function) -> Graph:
    """The graph of a function whose branches all name labels that exist."""
    starts: list[list[Op]] = [[]]
    labels: dict[str, int] = {}
    for line in function.body:
        if isinstance(line, Label):
            if starts[-1]:
                starts.append([])
            labels[line.name] = len(starts) - 1
        elif isinstance(line, Op):
            starts[-1].append(line)
            if line.row.effect in BRANCHES | ENDS:
                starts.append([])
    blocks = []
    for number, ops in enumerate(starts):
        last = ops[-1] if ops else None
        successors: list[int] = []
        if last is not None and last.row.effect in BRANCHES:
            successors += [labels[target.name] for target in last.operands.values() if isinstance(target, LabelRef)]
        through = last is None or last.guard is not None or last.row.effect not in BRANCHES | ENDS
        if through and number + 1 < len(starts):
            successors.append(number + 1)
        blocks.append(BasicBlock(tuple(ops), tuple(dict.fromkeys(successors)), through and number + 1 == len(starts)))
    return Graph(tuple(blocks))
