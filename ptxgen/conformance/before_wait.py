"""What a kernel touches before it waits for the launch before it, taken from its text, for every path through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.dependent_launch import BeforeWait, NextStarts
from ptxgen.emulator.flow import Flow, flow
from ptxgen.emulator.origins import ANYWHERE, Origins
from ptxgen.emulator.parse import parse
from ptxgen.emulator.program import Program, Step
from ptxgen.isa.effects import ENDS, STORES, Effect
from ptxgen.isa.operands import Address

OWN_SPACES = frozenset({"shared", "local", "param", "const"})
"""Spaces that no kernel before can have written."""
_COPIES = frozenset({Effect.ASYNC_COPY, Effect.BULK_COPY})


def before_wait(text: str, entry: str, signature: Signature) -> BeforeWait:
    """The facts of an entry of this text."""
    part = PartBeforeWait(parse(text), entry, signature)
    reads, writes, copies, prefetches, read_only = (set[str]() for _ in range(5))
    for step in part.steps:
        for names in part.accessed(step):
            if step.row.effect is Effect.PREFETCH:
                prefetches |= names
                continue
            if step.row.effect not in STORES or step.row.effect is Effect.ATOMIC:
                reads |= names
            if step.row.effect in STORES:
                writes |= names
            if step.row.effect in _COPIES:
                copies |= names
    for step in part.read_only_loads:
        for names in part.accessed(step):
            read_only |= names
    return BeforeWait(
        reads=frozenset(reads - {ANYWHERE}),
        writes=frozenset(writes - {ANYWHERE}),
        copies=frozenset(copies - {ANYWHERE}),
        prefetches=frozenset(prefetches - {ANYWHERE}),
        read_only=frozenset(read_only - {ANYWHERE}),
        anywhere=ANYWHERE in reads | writes | read_only,
        waits=not any(step.row.effect in ENDS for step in part.steps),
        next_starts=part.next_starts,
    )


@dataclass(frozen=True)
class PartBeforeWait:
    """The instructions of an entry that can be reached without a wait."""

    program: Program
    entry: str
    signature: Signature

    @cached_property
    def code(self) -> Flow:
        """The whole entry."""
        return flow(self.program, self.entry)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Those that can be reached from the entry without a wait. A guarded wait may not happen, so it is none."""
        found: list[Step] = []
        seen, stack = {0}, [0]
        while stack:
            block = self.code.blocks[stack.pop()]
            for step in block.instructions:
                if step.guard is None and step.row.waits_for_grids(step.modifiers):
                    break
                found.append(step)
            else:
                stack += block.following - seen
                seen |= block.following
        return tuple(found)

    @property
    def read_only_loads(self) -> Iterator[Step]:
        """The loads of the whole entry that promise that nothing writes there while the kernel runs."""
        return (step for step in self.all_steps if step.row.effect is Effect.READ_ONLY_LOAD)

    @property
    def all_steps(self) -> Iterator[Step]:
        """Those of the whole entry."""
        return (step for block in self.code.blocks for step in block.instructions)

    @property
    def next_starts(self) -> NextStarts:
        """When the next launch may start."""
        if any(step.row.lets_next_grid_start(step.modifiers) for step in self.steps):
            return NextStarts.BEFORE_THE_WAIT
        lets = any(step.row.lets_next_grid_start(step.modifiers) for step in self.all_steps)
        return NextStarts.AFTER_THE_WAIT if lets else NextStarts.AT_ITS_END

    def accessed(self, step: Step) -> Iterator[frozenset[str]]:
        """For each address of an instruction outside the kernel's own memory: the arguments and variables that it may be made
        from; ANYWHERE is among them where that is not known."""
        for place in step.row.operands:
            operand = step.operands.get(place.name)
            if isinstance(operand, Address) and place.spec.state_space(step.modifiers) not in OWN_SPACES:
                origins = self._origins.of(operand) - self._numbers
                yield (origins - self._own) if origins else frozenset({ANYWHERE})

    @cached_property
    def ambiguous(self) -> list[str]:
        """Names that an argument and a variable have in common."""
        return sorted(self._spaces.keys() & self.signature.keys())

    @cached_property
    def _origins(self) -> Origins:
        return Origins(self.code)

    @cached_property
    def _spaces(self) -> dict[str, str]:
        spaces = {variable.name: variable.space for variable in self.program.variables.values()}
        return spaces | {name: variable.space for name, variable in self.code.variables.items()}

    @cached_property
    def _own(self) -> frozenset[str]:
        constants = self._initialised - self._stored_to
        return constants | {name for name, space in self._spaces.items() if space in OWN_SPACES}

    @cached_property
    def _initialised(self) -> frozenset[str]:
        """Arrays of the module that hold numbers from the start."""
        return frozenset(variable.name for variable in self.program.variables.values() if variable.initial.data)

    @cached_property
    def _stored_to(self) -> frozenset[str]:
        """What an instruction of the entry may write; all where that is not known."""
        stored: set[str] = set()
        for step in self.all_steps:
            if step.row.effect in STORES:
                for place in step.row.operands:
                    operand = step.operands.get(place.name)
                    if isinstance(operand, Address):
                        stored |= self._origins.of(operand)
        return self._initialised if ANYWHERE in stored else frozenset(stored)

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(name for name, argument in self.signature.items() if not isinstance(argument, Array))
