"""The emulated machine: modules compiled for the host, kernels, launches. Memory is this process's memory."""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptxgen.emulator.facts import Facts
from ptxgen.emulator.launch_map import LaunchMap, target_addresses
from ptxgen.emulator.layout import (
    DEADLOCKED,
    ENDLESS,
    EXITED,
    FINISHED,
    REDZONE,
    STUCK,
    TIMED_OUT,
    TRAPPED,
    WAITING,
    Slot,
    State,
)
from ptxgen.emulator.printing import Printer, Sink
from ptxgen.emulator.program import Program
from ptxgen.emulator.runtime.reports import FindingRecord
from ptxgen.emulator.runtime.schedule import YIELD_COST
from ptxgen.emulator.sanitizer import (
    NAMES,
    RACES,
    Allocation,
    Finding,
    FindingKind,
    MemoryMap,
    Other,
    Site,
    classify,
    describe,
    unflatten,
)
from ptxgen.emulator.scratch import QUANTUM, SANITIZED_QUANTUM, Scratch, aligned
from ptxgen.emulator.together import MOST_BLOCKS, run_together
from ptxgen.emulator.workers import Run, run_blocks
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.files import read_regular
from ptxgen.printable import excerpt, literal
from ptxgen.target import MAX_BLOCK, MAX_GRID, MAX_THREADS, WARP_SIZE

DEFAULT_BUDGET = 1 << 28
SANITIZED_BUDGET = 1 << 24
"""Backward jumps that a warp may take before a launch counts as endless."""
MAX_SHARED = 227 * 1024
_MOST_ORDERED = 1 << 22
_LARGEST_SOURCE = 1 << 22  # bytes of a file that an author wrote
_PARALLEL_NS = 300_000  # a launch shorter than this is not worth waking threads for

_MESSAGES = {
    TRAPPED: (FindingKind.TRAP, "executes trap"),
    DEADLOCKED: (FindingKind.DEADLOCK, "waits at a barrier that no other thread will reach"),
    ENDLESS: (FindingKind.ENDLESS, "makes no progress: its budget of steps is spent"),
    TIMED_OUT: (FindingKind.TIMEOUT, "was running when the time of the launch was over"),
    STUCK: (FindingKind.DEADLOCK, "waits for another block, as all do that have not ended"),
}


class EmulationError(PtxGenError):
    """A kernel that cannot finish: a trap, a deadlock, an endless loop or too little time. `finding` says where."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


class Kernel:
    """A compiled entry. `shared_bytes` is its static shared memory; `parameters` its parameters in order; `from_cache` says
    whether its code came from disk."""

    def __init__(self, module: Module, name: str, facts: Facts, code: Any, *, from_cache: bool = False) -> None:
        from ptxgen.emulator.codegen import RUN

        self.module, self.name = module, name
        self.sanitize = module.sanitize
        self.facts, self.from_cache = facts, from_cache
        self.shared_bytes, self.parameters = facts.shared_bytes, facts.parameters
        self.parameter_bytes = max((p.offset + p.size for p in self.parameters), default=0)
        self._code = code
        self._run = RUN(code.function("run"))
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

        Returns what the sanitiser found. Without it, a trap, a deadlock, a loop that spends `budget` (backward jumps of a
        warp) or a launch that takes longer than `seconds` raises EmulationError; ArgumentError for a launch that no GPU would
        take. Blocks run on `workers` threads (by default as many as the host has CPUs), or one after the other if the kernel
        is sanitised, seeded, uses global atomics or prints, so that its result is always the same. `seed` shuffles the order of
        blocks and warps. `prints` takes what is printed, a text for each call and thread; stdout does unless it is given.
        `early`: the kernel may start while those before it run, so what it touches before it waits for them
        is found, if not constant. `cooperative`: its blocks, at most MOST_BLOCKS, are all there at once and run in turns on one
        thread, so they may wait for each other. A KeyboardInterrupt ends the launch: no thread runs it any more, and the next
        one is as good as any.
        """
        grid3, block3 = shape(grid, "grid"), shape(block, "block")
        self._check(grid3, block3, params, shared)
        blocks = grid3[0] * grid3[1] * grid3[2]
        if seconds is not None and not seconds > 0:
            raise ArgumentError(f"{self.name}: a launch needs more than 0 seconds, got {seconds}")
        if seed is not None and blocks > _MOST_ORDERED:
            raise ArgumentError(f"{self.name}: a seed orders up to {_MOST_ORDERED} blocks; the grid has {blocks}")
        if cooperative and blocks > MOST_BLOCKS:
            raise ArgumentError(f"{self.name}: up to {MOST_BLOCKS} blocks can wait for each other; the grid has {blocks}")
        if cooperative:
            count = blocks
        elif self.facts.serial or self.sanitize or seed is not None:
            count = 1
        else:
            count = min(workers or os.cpu_count() or 1, blocks)
            if self._block_ns.get(block3, 0.0) * blocks < _PARALLEL_NS:
                count = 1
        steps = budget or (SANITIZED_BUDGET if self.sanitize else DEFAULT_BUDGET)
        buffer, start = aligned(len(params) + 2 * REDZONE)
        ctypes.memmove(start + REDZONE, params, len(params))
        memory = self._accessible(memory, start + REDZONE)
        anew = cooperative and self.sanitize  # a shadow knows the epochs of one block, and here each has others
        scratches = [Scratch(self.facts, block3, shared) if anew else self._take(block3, shared) for _ in range(count)]
        try:
            for scratch in scratches:
                c = scratch.context
                c[Slot.PARAMETERS], c[Slot.PARAMETER_BYTES] = start + REDZONE, len(params)
                c[Slot.NCTAID_X], c[Slot.NCTAID_Y], c[Slot.NCTAID_Z] = grid3
                c[Slot.QUANTUM] = SANITIZED_QUANTUM if self.sanitize or cooperative else QUANTUM
                c[Slot.BUDGET] = max(steps // c[Slot.QUANTUM] * YIELD_COST, YIELD_COST)
                c[Slot.DATA] = self.module.data_address
                c[Slot.EARLY] = early
                c[Slot.CTA_ORDER] = c[Slot.WARP_ORDER] = c[Slot.FAULT_LINE] = c[Slot.TURNS] = 0
                c[Slot.CTAID_X] = c[Slot.CTAID_Y] = c[Slot.CTAID_Z] = 0
            orders = self._shuffle(scratches, None if cooperative else blocks, seed)
            checked = self._checked(scratches, blocks, memory) if self.sanitize else None
            run: Run = self._run
            if self.facts.prints:
                data = (self.module.data_address, self.module.data_bytes)
                printer = Printer(scratches, block3[0] * block3[1] * block3[2], data, prints)
                run = printer.stopping(run)
                for scratch in scratches:
                    scratch.context[Slot.PRINT] = printer.address
            if cooperative:
                status, worst = run_together(run, scratches, seed, seconds)
            else:
                started = time.perf_counter_ns()
                status, worst = run_blocks(run, scratches, blocks, self._block_ns.get(block3), seconds)
                if status == FINISHED:
                    self._block_ns[block3] = (time.perf_counter_ns() - started) * count / blocks
            findings = self._findings(scratches, memory, checked, block3) if checked is not None else []
            del orders, buffer
            return self._finish(worst, status, findings)
        finally:
            if not anew:
                self._scratch.setdefault((block3, shared), []).extend(scratches)

    def _check(self, grid: tuple[int, int, int], block: tuple[int, int, int], params: bytes, shared: int) -> None:
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= MAX_THREADS or block[2] > MAX_BLOCK[2]:
            raise ArgumentError(
                f"{self.name}: a block of {block} has {threads} threads; 1 to {MAX_THREADS} are allowed, z up to {MAX_BLOCK[2]}"
            )
        if self.facts.most_threads is not None and threads > self.facts.most_threads:
            raise ArgumentError(
                f"{self.name}: a block of {block} has {threads} threads; .maxntid allows {self.facts.most_threads}"
            )
        if self.facts.block is not None and block != self.facts.block:
            raise ArgumentError(f"{self.name}: a block of {block}; .reqntid allows {self.facts.block} only")
        if min(grid) < 1 or any(blocks > most for blocks, most in zip(grid, MAX_GRID, strict=True)):
            raise ArgumentError(f"{self.name}: grid {grid} is out of range; from (1, 1, 1) to {MAX_GRID}")
        if shared < 0 or self.shared_bytes + shared > MAX_SHARED:
            raise ArgumentError(
                f"{self.name}: {self.shared_bytes} static and {shared} dynamic bytes of shared memory; the most is {MAX_SHARED}"
            )
        if len(params) != self.parameter_bytes:
            raise ArgumentError(f"{self.name}: {len(params)} bytes of parameters, but the kernel takes {self.parameter_bytes}")

    def _take(self, block: tuple[int, int, int], shared: int) -> Scratch:
        try:
            return self._scratch[block, shared].pop()
        except (KeyError, IndexError):
            return Scratch(self.facts, block, shared)

    def _accessible(self, memory: MemoryMap | None, parameters: int) -> MemoryMap:
        """What a launch may touch: what the caller says, the module's variables, the parameters."""
        if not self.sanitize:
            return MemoryMap()
        arguments = memory.allocations if memory is not None else {}
        block = Allocation(parameters, self.parameter_bytes, "the parameters", read_only=True, constant=True)
        return MemoryMap({**arguments, **{a.base: a for a in (*self.module.variables, block)}})

    def _shuffle(self, scratches: list[Scratch], blocks: int | None, seed: int | None) -> list[Any]:
        """Fill in the orders of blocks, None where they take turns, and of warps; returns what must stay alive during the
        launch."""
        keep: list[Any] = []
        if seed is not None:
            shuffler = random.Random(seed)
            for slot, n in ((Slot.CTA_ORDER, blocks), (Slot.WARP_ORDER, scratches[0].context[Slot.WARP_COUNT])):
                if n is None:
                    continue
                order = list(range(n))
                shuffler.shuffle(order)
                array = (ctypes.c_int64 * n)(*order)
                keep.append(array)
                for scratch in scratches:
                    scratch.context[slot] = ctypes.addressof(array)
        return keep

    def _checked(self, scratches: list[Scratch], blocks: int, memory: MemoryMap) -> LaunchMap:
        """What the checks of a launch look up, put into its contexts. All findings go to the first scratch."""
        findings, contexts = scratches[0].findings, [scratch.context for scratch in scratches]
        findings.count = 0
        for context in contexts:
            context[Slot.FINDINGS] = ctypes.addressof(findings)
        targets = target_addresses(contexts[0], self.facts.targets, self.parameters, self.module.variables)
        return LaunchMap(contexts, memory, blocks, targets, self.facts.synchronises)

    def _finish(self, scratch: Scratch, status: int, findings: list[Finding]) -> list[Finding]:
        c = scratch.context
        if status == FINISHED:
            return findings
        kind, words = _MESSAGES[status]
        index = c[Slot.CTAID_X], c[Slot.CTAID_Y], c[Slot.CTAID_Z]
        line = c[Slot.FAULT_LINE] if status == TRAPPED else self._where_stuck(scratch)
        message = f"{self.name}, block ({index[0]},{index[1]},{index[2]}) {words}"
        text, location, source = self.module.source_of(line)
        finding = Finding(NAMES[kind], self.name, message, line, text, location, (0, 0, 0), index, 0, source=source)
        if self.sanitize:
            return [*findings, finding]
        raise EmulationError(finding)

    def _where_stuck(self, scratch: Scratch) -> int:
        """The line at which the first thread that has not finished is."""
        c = scratch.context
        lines = self.module.block_lines(self.name)
        for warp in range(c[Slot.WARP_COUNT]):
            state = c[Slot.WARPS] + warp * c[Slot.STATE_BYTES]
            for pc in (ctypes.c_uint32 * WARP_SIZE).from_address(state + State.PCS):
                if pc != EXITED and (pc & ~WAITING) < len(lines):
                    return lines[pc & ~WAITING]
        return 0

    def _findings(
        self, scratches: list[Scratch], memory: MemoryMap, checked: LaunchMap, block: tuple[int, int, int]
    ) -> list[Finding]:
        contexts = [list(scratch.context) for scratch in scratches]  # one for all blocks, or one for each
        findings = scratches[0].findings
        return [
            self._finding(record, contexts[record.block % len(contexts)], memory, checked, block)
            for record in findings.records[: findings.count]
        ]

    def _finding(
        self, record: FindingRecord, context: list[int], memory: MemoryMap, checked: LaunchMap, block: tuple[int, int, int]
    ) -> Finding:
        kind = FindingKind(record.kind)
        text, location, source = self.module.source_of(record.line)
        grid = (context[Slot.NCTAID_X], context[Slot.NCTAID_Y], context[Slot.NCTAID_Z])
        space, address = classify(record, context)
        address = address if space else memory.original(address)
        other = Other.of(record, checked.block_of) if kind in RACES else None
        return Finding(
            NAMES[kind], self.name, describe(record, self.name, context, memory, block, other), record.line, text, location,
            unflatten(record.thread, block), unflatten(record.block, grid), address, record.count, source,
            None if other is None else Site(other.line, *self.module.source_of(other.line)),
        )  # fmt: skip


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
        from ptxgen.emulator.jit import module_layout

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
            if variable.initial is not None:
                ctypes.memmove(at, variable.initial, len(variable.initial))
            for offset, symbol, addend in variable.pointers:
                if symbol not in places:
                    raise ArgumentError(f"{variable.name} is initialised with the address of {symbol}, which has none")
                ctypes.c_uint64.from_address(at + offset).value = self.data_address + places[symbol].offset + addend

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


def shape(value: int | Sequence[int], what: str) -> tuple[int, int, int]:
    """A grid or block as (x, y, z); ArgumentError for anything but 1 to 3 whole numbers, none negative."""
    try:
        numbers = tuple(int(x) for x in value) if isinstance(value, Sequence) else (int(value),)
    except (TypeError, ValueError) as e:
        raise ArgumentError(f"{what} must be a whole number or up to three, got {literal(value)}") from e
    if not 1 <= len(numbers) <= 3 or min(numbers) < 0:
        raise ArgumentError(f"{what} must be a whole number or up to three, got {literal(value)}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _source_line(file: str, line: int) -> str:
    try:
        lines = read_regular(Path(file), _LARGEST_SOURCE).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return excerpt(lines[line - 1].strip()) if 0 < line <= len(lines) else ""
