"""Whether a kernel that may start before the one before it has ended (programmatic dependent launch) waits for that in time: a
rule on the text, for every way through it.

Until it has waited, what the kernels before it write may be there or not, and what they read may still be needed. So on every
way from the entry a thread waits before it touches memory. It waits before it ends, too: if all threads of a kernel ended
without having waited, it could be over while those before it still run, and whoever comes after it would wait for nothing.
Constant arguments are free, as are loads from settled ones, and prefetches. A load through the read-only path promises that
nobody writes the memory while the kernel runs, which here includes the time before the wait: it is for constant arguments
alone, wherever it stands. And what is constant nobody writes who may still run, this kernel neither."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.emulator.flow import Flow, flow
from ptxgen.emulator.origins import ANYWHERE, Origins
from ptxgen.emulator.parse import parse
from ptxgen.emulator.program import Program, Step
from ptxgen.isa.effects import ENDS, STORES, Effect
from ptxgen.isa.operands import Address

_OWN = frozenset({"shared", "local", "param", "const"})
"""Spaces that no kernel before can have written."""


def violations(text: str, entry: str, signature: Signature) -> list[str]:
    """Why this text must not start early, in words and with its lines; empty if it may."""
    program = parse(text)
    code = flow(program, entry)
    rule = _Rule(program, code, signature, text.splitlines())
    if rule.ambiguous:
        return [f"{name} is the name of an argument and of a variable" for name in rule.ambiguous]
    return [*dict.fromkeys([*rule.before_the_wait(), *rule.through_the_read_only_path(), *rule.to_constants()])]


class _Rule:
    def __init__(self, program: Program, code: Flow, signature: Signature, lines: list[str]) -> None:
        self.program, self.code, self.lines = program, code, lines
        self.constant = {n for n, a in signature.items() if isinstance(a, Array) and a.constant}
        self.settled = {n for n, a in signature.items() if isinstance(a, Array) and a.settled}
        spaces = {variable.name: variable.space for variable in program.variables.values()}
        spaces |= {name: variable.space for name, variable in code.variables.items()}
        self.ambiguous = sorted(spaces.keys() & signature.keys())
        self.harmless = {name for name, space in spaces.items() if space in _OWN}
        self.numbers = {name for name, argument in signature.items() if not isinstance(argument, Array)}
        self.origins = Origins(code)

    def before_the_wait(self) -> Iterator[str]:
        """What the blocks do that can be reached from the entry without a wait, up to their own."""
        seen, stack = {0}, [0]
        while stack:
            block = self.code.blocks[stack.pop()]
            for step in block.instructions:
                if step.guard is None and step.row.waits_for_grids(step.modifiers):
                    break
                yield from self._touched(step)
                if step.row.effect in ENDS:
                    yield f"a thread may end here without having waited{self._place(step)}"
            else:
                following = {*block.targets, *([block.index + 1] if block.falls_through else [])}
                stack += following - seen
                seen |= following

    def through_the_read_only_path(self) -> Iterator[str]:
        for block in self.code.blocks:
            for step in block.steps:
                if step.row.effect is Effect.READ_ONLY_LOAD:
                    for what in self._not_constant(step):
                        yield f"{what} is loaded as if nobody wrote it while the kernel runs{self._place(step)}"

    def to_constants(self) -> Iterator[str]:
        for step in (step for block in self.code.blocks for step in block.steps):
            if step.row.effect in STORES:
                for origins in self._accessed(step):
                    for what in sorted(origins & self.constant):
                        yield f"{what} is constant, and may be written{self._place(step)}"

    def _touched(self, step: Step) -> Iterator[str]:
        if step.row.effect is not Effect.PREFETCH:
            for what in self._not_constant(step):
                if what not in self.settled:
                    yield f"{what} is touched before the wait{self._place(step)}"
                elif step.row.effect in STORES:
                    yield f"{what} is written before the wait{self._place(step)}"

    def _not_constant(self, step: Step) -> Iterator[str]:
        """What an instruction accesses that is neither a constant argument nor the kernel's own."""
        for origins in self._accessed(step):
            if not origins or ANYWHERE in origins:
                yield "memory of an address that comes from no argument"
            yield from sorted(origins - self.constant - self.harmless - {ANYWHERE})

    def _accessed(self, step: Step) -> Iterator[frozenset[str]]:
        """What each address of an instruction is made from, but for those in the kernel's own spaces."""
        for place in step.row.operands:
            operand = step.operands.get(place.name)
            if isinstance(operand, Address) and place.spec.state_space(step.modifiers) not in _OWN:
                yield self.origins.of(operand) - self.numbers

    def _place(self, step: Step) -> str:
        text = self.lines[step.line - 1].strip()
        where = ""
        if step.source is not None:
            where = f"\n  {self.program.files.get(step.source.file, f'file {step.source.file}')}:{step.source.line}"
        return f"\n  ptx line {step.line}   {text}{where}"
