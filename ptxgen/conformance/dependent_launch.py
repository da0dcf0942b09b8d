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

from ptxgen.conformance.before_wait import PartBeforeWait
from ptxgen.dsl.arguments import Array, Signature
from ptxgen.emulator.origins import ANYWHERE
from ptxgen.emulator.parse import parse
from ptxgen.emulator.program import Step
from ptxgen.isa.effects import ENDS, STORES, Effect


def violations(text: str, entry: str, signature: Signature) -> list[str]:
    """Why this text must not be dependent, in words and with its lines; empty if it may."""
    rule = _Rule(PartBeforeWait(parse(text), entry, signature), text.splitlines())
    if rule.part.ambiguous:
        return [f"{name} is the name of an argument and of a variable" for name in rule.part.ambiguous]
    return [*dict.fromkeys([*rule.before_the_wait(), *rule.through_the_read_only_path(), *rule.to_constants()])]


class _Rule:
    def __init__(self, part: PartBeforeWait, lines: list[str]) -> None:
        self.part, self.lines = part, lines
        self.constant = {n for n, a in part.signature.items() if isinstance(a, Array) and a.constant}
        self.settled = {n for n, a in part.signature.items() if isinstance(a, Array) and a.settled}

    def before_the_wait(self) -> Iterator[str]:
        """What is done before the wait and may not be."""
        for step in self.part.steps:
            yield from self._touched(step)
            if step.row.effect in ENDS:
                yield f"a thread may end here without having waited{self._place(step)}"

    def through_the_read_only_path(self) -> Iterator[str]:
        for step in self.part.read_only_loads:
            for what in self._not_constant(step):
                yield f"{what} is loaded as if nobody wrote it while the kernel runs{self._place(step)}"

    def to_constants(self) -> Iterator[str]:
        for step in self.part.all_steps:
            if step.row.effect in STORES:
                for names in self.part.accessed(step):
                    for what in sorted(names & self.constant):
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
        for names in self.part.accessed(step):
            if ANYWHERE in names:
                yield "memory of an address that comes from no argument"
            yield from sorted(names - self.constant - {ANYWHERE})

    def _place(self, step: Step) -> str:
        text = self.lines[step.line - 1].strip()
        where = ""
        if step.source is not None:
            where = f"\n  {self.part.program.files.get(step.source.file, f'file {step.source.file}')}:{step.source.line}"
        return f"\n  ptx line {step.line}   {text}{where}"
