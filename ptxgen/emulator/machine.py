"""The emulated machine: modules compiled for the host, and kernels that are launched. Memory is this process's memory."""

from __future__ import annotations

import os
from pathlib import Path

from ptxgen.emulator.facts import Facts
from ptxgen.emulator.launching import EmulationError, Launch, RunningLaunch, allowed_steps, launch_together, shape
from ptxgen.emulator.layout import FINISHED
from ptxgen.emulator.loaded import EmulatedKernel, Image
from ptxgen.emulator.memory_map import MemoryMap
from ptxgen.emulator.printing import Sink
from ptxgen.emulator.sanitizer import Finding
from ptxgen.emulator.watch import TimeLimit
from ptxgen.emulator.workers import run_blocks
from ptxgen.errors import ArgumentError

__all__ = ["EmulationError", "Kernel", "Module", "compile_module", "shape"]

_MOST_ORDERED = 1 << 22
_PARALLEL_NS = 300_000  # a launch shorter than this is not worth waking threads for


class Kernel(EmulatedKernel):
    """A compiled entry that can be launched: `shared_bytes`, `parameters` and `from_cache` are EmulatedKernel's."""

    def launch(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        params: bytes,
        *,
        shared: int = 0,
        memory: MemoryMap | None = None,
        workers: int | None = None,
        seed: int | None = None,
        budget: int | None = None,
        seconds: float | None = None,
        dependent: bool = False,
        cooperative: bool = False,
        prints: Sink | None = None,
    ) -> list[Finding]:
        """Run the kernel to its end; `params` are the parameter bytes as `parameters` lays them out.

        Returns what the sanitiser found. Without it, a trap, a deadlock, a loop that spends `budget` (backward jumps of a warp)
        or a launch that takes longer than `seconds` (of None it takes as long as it takes) raises EmulationError; ArgumentError
        for a launch that no GPU would take. Blocks run on `workers` threads (by default as many as the host has CPUs), or one
        after the other if the kernel is sanitised, seeded, uses global atomics or prints, so that its result is always the
        same. `seed` shuffles the order of blocks and warps. `prints` takes what is printed, a text for each call and thread;
        stdout does unless it is given. `dependent`: the kernel may start while those before it run, so what it touches before
        it waits for them is found, unless it is constant, or settled and read. `cooperative`: its blocks, at most MOST_BLOCKS,
        are all there at once and run in turns on one thread, so they may wait for each other. A KeyboardInterrupt ends the
        launch: no thread runs it any more, and the next one is as good as any.
        """
        launch = Launch(self, grid, block, params, shared, memory, dependent)
        if cooperative:
            return launch_together([launch], seed=seed, budget=budget, seconds=seconds, prints=prints)
        launch.check(seconds)
        blocks, block3 = launch.blocks, launch.block3
        if seed is not None and blocks > _MOST_ORDERED:
            raise ArgumentError(f"{self.name}: a seed orders up to {_MOST_ORDERED} blocks; the grid has {blocks}")
        if self.facts.serial or self.sanitize or seed is not None:
            count = 1
        else:
            count = min(workers or os.cpu_count() or 1, blocks)
            if self.block_ns.get(block3, 0.0) * blocks < _PARALLEL_NS:
                count = 1
        running = RunningLaunch(launch, count, seed=seed, budget=allowed_steps(budget, seconds), prints=prints)
        try:
            checks = running.checks()
            limit = TimeLimit(seconds)
            status, worst = run_blocks(running.run, running.scratches, blocks, limit)
            if status == FINISHED:
                self.block_ns[block3] = limit.passed * 1e9 * count / blocks
            findings = running.findings(checks) if checks is not None else []
            return running.ended(worst, status, findings, limit)
        finally:
            running.give_back()

    def afresh(self) -> Kernel:
        """The same code, for a module with variables of its own, which have their initial values."""
        return Kernel(self.image.afresh(), self.name, self.facts, self._code, sanitize=self.sanitize)


class Module:
    """PTX text ready to launch. Global and const variables live as long as the module."""

    def __init__(self, text: str, *, sanitize: bool, cache_dir: Path | None, sources: bool) -> None:
        self.image = Image(text, sources=sources)
        self.sanitize, self.cache_dir = sanitize, cache_dir
        self._kernels: dict[str, Kernel] = {}

    @property
    def quickly(self) -> bool:
        """Whether code is wanted soon rather than fast: kernels are checked once or twice, and else launched many times."""
        return self.sanitize

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return self.image.program.entries

    def kernel(self, entry: str) -> Kernel:
        """The kernel of this name; ArgumentError that lists the entries if there is none."""
        if entry not in self._kernels:
            self._kernels[entry] = self._load(entry)
        return self._kernels[entry]

    def _load(self, entry: str) -> Kernel:
        from ptxgen.emulator import codegen

        name = codegen.key(self.image.text, entry, self.sanitize, self.quickly) if self.cache_dir is not None else ""
        cached = codegen.read_cached(self.cache_dir, name)
        if cached is None:
            facts, objects = self._compile(entry)
            codegen.write_cached(self.cache_dir, name, facts.to_json(), objects)
        else:
            facts, objects = Facts.from_json(cached[0]), cached[1]
        if facts.has_data:
            self.image.lay_out_data()
        code = codegen.load(objects)
        return Kernel(self.image, entry, facts, code, sanitize=self.sanitize, from_cache=cached is not None)

    def _compile(self, entry: str) -> tuple[Facts, list[bytes]]:
        from ptxgen.emulator import codegen
        from ptxgen.emulator.jit import compile_kernel
        from ptxgen.emulator.runtime.link import objects
        from ptxgen.emulator.shared_steps import code, shared

        program = self.image.program
        function = program.functions.get(entry)
        if function is None or not function.is_entry:
            raise ArgumentError(f"there is no entry {entry!r}; the module has {', '.join(program.entries) or 'none'}")
        compiled = compile_kernel(program, entry, sanitize=self.sanitize)
        runtime = objects(compiled.runtime, quickly=self.quickly)
        if not self.quickly:
            return compiled.facts, [codegen.build(compiled.text), *runtime]
        text, steps = shared(compiled.text)
        return compiled.facts, [codegen.build(text, quickly=True, small=True), *runtime, *map(code, steps)]


def compile_module(
    text: str, *, sanitize: bool = False, cache_dir: str | os.PathLike[str] | None = None, sources: bool = True
) -> Module:
    """A module of PTX text. With `sanitize` its kernels check themselves; `cache_dir` keeps compiled code between processes;
    without `sources` the files that the text names are not read for the author's lines in findings."""
    return Module(text, sanitize=sanitize, cache_dir=Path(cache_dir) if cache_dir is not None else None, sources=sources)
