"""Everything that is known of one kernel without a GPU: `explain` gathers it, for the command line and the HTML page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ptxgen.dsl.ir import Op, Remark
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError, Location, PtxGenError
from ptxgen.explain.bounds import Bound, Mix, bounds, mix
from ptxgen.explain.loops import NaturalLoop, executions, find_loops, innermost
from ptxgen.explain.sass import NoDisassembler, SassLine, disassemble
from ptxgen.gpus.gpu import Gpu
from ptxgen.gpus.occupancy import Occupancy, occupancy
from ptxgen.target import Target
from ptxgen.toolchain.assemble import Assembled, assemble, toolchain
from ptxgen.toolchain.module import Emitted, emit
from ptxgen.verify.cfg import Graph, graph

SEED = 0
"""Of the random numbers that accuracy is measured with."""


@dataclass(frozen=True)
class InnerLoop:
    """A loop that holds no other: PTX lines from `first` to `last` (1-based), and what one pass does. `sass` counts its machine
    instructions, None without nvdisasm."""

    first: int
    last: int
    passes: int | None
    exact: bool
    mix: Mix
    sass: int | None


@dataclass(frozen=True)
class Explanation:
    """A kernel on a GPU. `sass` is empty where nvdisasm is missing, and `no_sass` then says so. `accuracy` holds what the
    kernel type measured of itself (KernelType.accuracy)."""

    emitted: Emitted
    gpu: Gpu
    assembled: Assembled
    assembler: str
    sass: tuple[SassLine, ...]
    no_sass: str
    accuracy: Mapping[str, float]

    @property
    def kernel(self) -> KernelType:
        """The kernel that is explained."""
        return self.emitted.kernel

    @property
    def doc(self) -> str:
        """What its class says of it."""
        return inspect.getdoc(type(self.kernel)) or ""

    @cached_property
    def lines(self) -> dict[int, Op]:
        """The instructions by their line of the text."""
        return dict(_placed(self.emitted))

    @cached_property
    def occupancy(self) -> Occupancy:
        """Of a multiprocessor."""
        launch = self.kernel.launch()
        return occupancy(self.gpu.multiprocessor, launch.threads, self.assembled.registers, self.shared_bytes)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, with what a launch asks for."""
        return self.emitted.shared_bytes + self.kernel.launch().dynamic_shared

    @property
    def waves(self) -> float:
        """How often the grid fills the GPU."""
        x, y, z = self.kernel.launch().grid
        return x * y * z / (self.gpu.multiprocessors * max(self.occupancy.blocks, 1))

    @cached_property
    def loops(self) -> tuple[NaturalLoop, ...]:
        """In the order of the text."""
        return find_loops(self._graph)

    @cached_property
    def inner_loops(self) -> tuple[InnerLoop, ...]:
        """The loops that hold no other."""
        return tuple(self._inner(loop) for loop in innermost(self.loops))

    @property
    def all_passes_known(self) -> bool:
        """Whether the whole launch's instructions could be counted; otherwise every unknown loop counts as one pass."""
        return all(loop.passes is not None for loop in self.loops)

    @cached_property
    def mix(self) -> Mix:
        """What one thread does in the whole launch, if it takes every branch."""
        times = executions(self._graph, self.loops)
        ops = ((op, times[number]) for number in self._graph.order for op in self._graph.blocks[number].ops)
        return mix(ops, self.gpu.multiprocessor.load_store_bytes)

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """By unit, the tightest first; the clocks are of the inner loop with the most instructions, or without loops of all."""
        inner = max((loop.mix for loop in self.inner_loops), key=lambda one: one.total, default=self.mix)
        return bounds(self.gpu, self.kernel.launch(), self.kernel.work(), self.mix, inner)

    @cached_property
    def by_author(self) -> dict[Location, list[int]]:
        """PTX lines by the Python line that wrote them, in the order in which the text first names it."""
        numbers: dict[Location, list[int]] = {}
        for number, op in self.lines.items():
            numbers.setdefault(op.where, []).append(number)
        return numbers

    @cached_property
    def _graph(self) -> Graph:
        return graph(self.emitted.function)

    def _inner(self, loop: NaturalLoop) -> InnerLoop:
        ops = [op for number in sorted(loop.blocks) for op in self._graph.blocks[number].ops]
        inside = {id(op) for op in ops}
        numbers = [number for number, op in self.lines.items() if id(op) in inside]
        machine = sum(line.address >= 0 and line.ptx_line in set(numbers) for line in self.sass) if self.sass else None
        per_pass = mix(((op, 1) for op in ops), self.gpu.multiprocessor.load_store_bytes)
        return InnerLoop(min(numbers), max(numbers), loop.passes, loop.exact, per_pass, machine)


def explain(kernel: KernelType, target: Target, gpu: Gpu) -> Explanation:
    """Write, assemble and take apart a kernel for `target` as it would run on `gpu`. Raises what writing and assembling raise,
    and ArgumentError where the GPU cannot run code for the target."""
    if gpu.sm < target.sm:
        raise ArgumentError(f"{gpu.title} is sm_{gpu.sm} and cannot run code for {target}")
    import numpy as np

    emitted = emit(kernel, target)
    assembled = assemble(emitted.text, emitted.target, line_info=True)
    try:
        sass, no_sass = disassemble(assembled.cubin, emitted.entry), ""
    except NoDisassembler as error:
        sass, no_sass = (), str(error)
    accuracy = kernel.accuracy(np.random.default_rng(SEED))
    return Explanation(emitted, gpu, assembled, toolchain(), sass, no_sass, accuracy)


def _placed(emitted: Emitted) -> Iterator[tuple[int, Op]]:
    """The instructions with their line of the text, which ends with the body and a brace."""
    text = emitted.text.splitlines()
    body = emitted.function.body
    heights = [len(line.text.splitlines()) if isinstance(line, Remark) else 1 for line in body]
    number = len(text) - sum(heights)
    for line, height in zip(body, heights, strict=True):
        if isinstance(line, Op):
            if text[number - 1].strip() != str(line):
                raise PtxGenError(f"ptx line {number} of {emitted.entry} is {text[number - 1].strip()!r}, not {line}")
            yield number, line
        number += height
