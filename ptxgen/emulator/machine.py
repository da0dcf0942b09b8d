"""The emulated machine: modules compiled for the host, kernels, launches. Memory is this process's memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptxgen.emulator.facts import Facts
from ptxgen.emulator.launching import EmulationError, Launch, Running, allowed_steps, launch_together, shape
from ptxgen.emulator.layout import FINISHED
from ptxgen.emulator.memory_map import Allocation, MemoryMap
from ptxgen.emulator.printing import Sink
from ptxgen.emulator.program import Program
from ptxgen.emulator.sanitizer import Finding
from ptxgen.emulator.scratch import Scratch, aligned
from ptxgen.emulator.watch import Run, TimeLimit
from ptxgen.emulator.workers import run_blocks
from ptxgen.errors import ArgumentError
from ptxgen.files import read_regular
from ptxgen.printable import excerpt

__all__ = ["EmulationError", "Kernel", "Module", "compile_module", "shape"]

_MOST_ORDERED = 1 << 22
_LARGEST_SOURCE = 1 << 22  # bytes of a file that an author wrote
_PARALLEL_NS = 300_000  # a launch shorter than this is not worth waking threads for


class Kernel:
    """A compiled entry. `shared_bytes` is its static shared memory; `parameters` its parameters in order; `from_cache` says
    whether its code came from disk; `run` is its code."""

    def __init__(self, module: Module, name: str, facts: Facts, code: Any, *, from_cache: bool = False) -> None:
        from ptxgen.emulator.codegen import RUN

        self.module, self.name = module, name
        self.sanitize = module.sanitize
        self.facts, self.from_cache = facts, from_cache
        self.shared_bytes, self.parameters = facts.shared_bytes, facts.parameters
        self.parameter_bytes = max((p.offset + p.size for p in self.parameters), default=0)
        self._code = code
        self.run: Run = RUN(code.function("run"))
        self._scratch: dict[tuple[tuple[int, int, int], int], list[Scratch]] = {}
        self._block_ns: dict[tuple[int, int, int], float] = {}

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
        early: bool = False,
        cooperative: bool = False,
        prints: Sink | None = None,
    ) -> list[Finding]:
        """Run the kernel to its end; `params` are the parameter bytes as `parameters` lays them out.

        Returns what the sanitiser found. Without it, a trap, a deadlock, a loop that spends `budget` (backward jumps of a warp)
        or a launch that takes longer than `seconds` (of None it takes as long as it takes) raises EmulationError; ArgumentError
        for a launch that no GPU would take. Blocks run on `workers` threads (by default as many as the host has CPUs), or one
        after the other if the kernel is sanitised, seeded, uses global atomics or prints, so that its result is always the
        same. `seed` shuffles the order of blocks and warps. `prints` takes what is printed, a text for each call and thread;
        stdout does unless it is given. `early`: the kernel may start while those before it run, so what it touches before it
        waits for them is found, unless it is constant, or settled and read. `cooperative`: its blocks, at most MOST_BLOCKS, are
        all there at once and run in turns on one thread, so they may wait for each other. A KeyboardInterrupt ends the launch:
        no thread runs it any more, and the next one is as good as any.
        """
        launch = Launch(self, grid, block, params, shared, memory, early)
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
            if self._block_ns.get(block3, 0.0) * blocks < _PARALLEL_NS:
                count = 1
        running = Running(launch, count, seed=seed, budget=allowed_steps(budget, seconds), prints=prints)
        try:
            checks = running.checks()
            limit = TimeLimit(seconds)
            status, worst = run_blocks(running.run, running.scratches, blocks, limit)
            if status == FINISHED:
                self._block_ns[block3] = limit.passed * 1e9 * count / blocks
            findings = running.findings(checks) if checks is not None else []
            return running.ended(worst, status, findings, limit)
        finally:
            running.give_back()

    def take(self, block: tuple[int, int, int], shared: int) -> Scratch:
        """What a worker needs for blocks of this shape, used before or new."""
        try:
            return self._scratch[block, shared].pop()
        except (KeyError, IndexError):
            return Scratch(self.facts, block, shared)

    def keep(self, block: tuple[int, int, int], shared: int, scratches: Sequence[Scratch]) -> None:
        """Keep such for the launches to come."""
        self._scratch.setdefault((block, shared), []).extend(scratches)


class Module:
    """PTX text ready to launch. Global and const variables live as long as the module."""

    def __init__(self, text: str, *, sanitize: bool, cache_dir: Path | None, sources: bool) -> None:
        self.text, self.sanitize, self.cache_dir, self.sources = text, sanitize, cache_dir, sources
        self._program: Program | None = None
        self._kernels: dict[str, Kernel] = {}
        self._block_lines: dict[str, list[int]] = {}
        self._data: Any = None
        self.data_address = self.data_bytes = 0
        self.variables: list[Allocation] = []

    @property
    def quickly(self) -> bool:
        """Whether code is wanted soon rather than fast: kernels are checked once or twice, and else launched many times."""
        return self.sanitize

    @property
    def program(self) -> Program:
        """The parsed text; read only when something needs it, because a cached kernel does not."""
        if self._program is None:
            from ptxgen.emulator.parse import parse

            self._program = parse(self.text)
        return self._program

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return self.program.entries

    def kernel(self, entry: str) -> Kernel:
        """The kernel of this name; ArgumentError that lists the entries if there is none."""
        if entry not in self._kernels:
            self._kernels[entry] = self._load(entry)
        return self._kernels[entry]

    def _load(self, entry: str) -> Kernel:
        from ptxgen.emulator import codegen

        name = codegen.key(self.text, entry, self.sanitize, self.quickly) if self.cache_dir is not None else ""
        cached = codegen.read_cached(self.cache_dir, name)
        if cached is None:
            facts, objects = self._compile(entry)
            codegen.write_cached(self.cache_dir, name, facts.to_json(), objects)
        else:
            facts, objects = Facts.from_json(cached[0]), cached[1]
        if facts.has_data:
            self._lay_out_data()
        return Kernel(self, entry, facts, codegen.load(objects), from_cache=cached is not None)

    def _compile(self, entry: str) -> tuple[Facts, list[bytes]]:
        from ptxgen.emulator import codegen
        from ptxgen.emulator.jit import compile_kernel
        from ptxgen.emulator.runtime.link import objects

        function = self.program.functions.get(entry)
        if function is None or not function.is_entry:
            raise ArgumentError(f"there is no entry {entry!r}; the module has {', '.join(self.program.entries) or 'none'}")
        compiled = compile_kernel(self.program, entry, sanitize=self.sanitize)
        runtime = objects(compiled.runtime, quickly=self.quickly)
        return compiled.facts, [codegen.build(compiled.text, quickly=self.quickly), *runtime]

    def _lay_out_data(self) -> None:
        """Make the module's variables, once, with their initial values and the addresses in them."""
        if self._data is not None:
            return
        from ptxgen.emulator.placement import module_layout

        places, size = module_layout(self.program)
        self._data, self.data_address = aligned(size)
        self.data_bytes = size
        for variable in self.program.variables.values():
            if variable.name not in places:
                continue
            at = self.data_address + places[variable.name].offset
            constant = variable.space == "const"
            name = f"the variable {variable.name}"
            self.variables.append(Allocation(at, variable.size, name, read_only=constant, constant=constant))
            ctypes.memmove(at, bytes(variable.initial.data), len(variable.initial.data))
            for pointer in variable.initial.pointers:
                if pointer.symbol not in places:
                    raise ArgumentError(f"{variable.name} is initialised with the address of {pointer.symbol}, which has none")
                value = pointer.value(self.data_address + places[pointer.symbol].offset)
                ctypes.memmove(at + pointer.offset, value.to_bytes(pointer.size, "little"), pointer.size)

    def block_lines(self, entry: str) -> list[int]:
        """The first line of each block of an entry."""
        if entry not in self._block_lines:
            from ptxgen.emulator.flow import flow

            lines = []
            for block in flow(self.program, entry).blocks:
                lines.append(block.steps[0].line if block.steps else block.end.line if block.end else 0)
            self._block_lines[entry] = lines
        return self._block_lines[entry]

    def source_of(self, line: int) -> tuple[str, str, str]:
        """(ptx text, author's file:line, that line's source) of a PTX line; empty where the text has no `.loc`, the last where
        the file is not read."""
        from ptxgen.emulator.program import Step

        lines = self.text.splitlines()
        text = excerpt(lines[line - 1].strip()) if 0 < line <= len(lines) else ""
        for function in self.program.functions.values():
            for item in function.items:
                if isinstance(item, Step) and item.line == line and item.source is not None:
                    file = self.program.files.get(item.source.file, f"file {item.source.file}")
                    source = _source_line(file, item.source.line) if self.sources else ""
                    return text, excerpt(f"{file}:{item.source.line}", 4096), source
        return text, "", ""


def compile_module(
    text: str, *, sanitize: bool = False, cache_dir: str | os.PathLike[str] | None = None, sources: bool = True
) -> Module:
    """A module of PTX text. With `sanitize` its kernels check themselves; `cache_dir` keeps compiled code between processes;
    without `sources` the files that the text names are not read for the author's lines in findings."""
    return Module(text, sanitize=sanitize, cache_dir=Path(cache_dir) if cache_dir is not None else None, sources=sources)


def _source_line(file: str, line: int) -> str:
    try:
        lines = read_regular(Path(file), _LARGEST_SOURCE).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return excerpt(lines[line - 1].strip()) if 0 < line <= len(lines) else ""
