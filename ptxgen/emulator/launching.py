"""A launch, from its arguments to what the sanitiser found; and several that run together, each on a device of its own. What
compiles kernels is machine.py's."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from ptxgen.emulator.launch_map import LaunchMap, Touched, target_addresses
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
    ContextWord,
    State,
)
from ptxgen.emulator.loaded import EmulatedKernel
from ptxgen.emulator.memory_map import Allocation, MemoryMap
from ptxgen.emulator.printing import Printer, Sink
from ptxgen.emulator.runtime.reports import FindingRecord
from ptxgen.emulator.runtime.schedule import YIELD_COST
from ptxgen.emulator.sanitizer import NAMES, PAIRS, Finding, FindingKind, Other, Site, classify, describe, unflatten
from ptxgen.emulator.scratch import QUANTUM, SANITIZED_QUANTUM, Scratch, aligned
from ptxgen.emulator.together import MOST_BLOCKS, BlockTurn, run_together
from ptxgen.emulator.watch import TimeLimit
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.printable import literal
from ptxgen.target import MAX_BLOCK, MAX_GRID, MAX_THREADS, WARP_SIZE

DEFAULT_BUDGET = 1 << 28
SANITIZED_BUDGET = 1 << 24
NO_BUDGET = 1 << 62
"""Backward jumps that a warp may take before a launch counts as endless."""
DEFAULT_SECONDS = 10.0
"""How long the launch of `run` may take, unless it is told otherwise."""
MAX_SHARED = 227 * 1024

_MESSAGES = {
    TRAPPED: (FindingKind.TRAP, "executes trap"),
    DEADLOCKED: (FindingKind.DEADLOCK, "waits at a barrier that no other thread will reach"),
    ENDLESS: (
        FindingKind.ENDLESS,
        "makes no progress: its budget of steps is spent; seconds= of more than 10 lets it run as long",
    ),
    TIMED_OUT: (FindingKind.TIMEOUT, "was still running"),
    STUCK: (FindingKind.DEADLOCK, "waits for another block, as all do that have not ended"),
}


class EmulationError(PtxGenError):
    """A kernel that cannot finish: a trap, a deadlock, an endless loop or too little time. `finding` says where."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


@dataclass(frozen=True)
class Launch:
    """A launch: its arguments are those of `Kernel.launch`. `earlier`: where several run together, what launches before it have
    touched on its device since the last such launch of these devices, so that the others cannot know that it is over."""

    kernel: EmulatedKernel
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    params: bytes
    shared: int = 0
    memory: MemoryMap | None = None
    dependent: bool = False
    earlier: Sequence[Touched] = ()

    @cached_property
    def grid3(self) -> tuple[int, int, int]:
        """Blocks as (x, y, z)."""
        return shape(self.grid, "grid")

    @cached_property
    def block3(self) -> tuple[int, int, int]:
        """Threads of a block as (x, y, z)."""
        return shape(self.block, "block")

    @cached_property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return prod(self.grid3)

    def check(self, seconds: float | None = None) -> None:
        """ArgumentError for what no GPU would take."""
        kernel, grid, block = self.kernel, self.grid3, self.block3
        threads, name = prod(block), kernel.name
        if not 0 < threads <= MAX_THREADS or block[2] > MAX_BLOCK[2]:
            raise ArgumentError(
                f"{name}: a block of {block} has {threads} threads; 1 to {MAX_THREADS} are allowed, z up to {MAX_BLOCK[2]}"
            )
        if kernel.facts.most_threads is not None and threads > kernel.facts.most_threads:
            raise ArgumentError(
                f"{name}: a block of {block} has {threads} threads; .maxntid allows {kernel.facts.most_threads}"
            )
        if kernel.facts.block is not None and block != kernel.facts.block:
            raise ArgumentError(f"{name}: a block of {block}; .reqntid allows {kernel.facts.block} only")
        if min(grid) < 1 or any(blocks > most for blocks, most in zip(grid, MAX_GRID, strict=True)):
            raise ArgumentError(f"{name}: grid {grid} is out of range; from (1, 1, 1) to {MAX_GRID}")
        if self.shared < 0 or kernel.shared_bytes + self.shared > MAX_SHARED:
            raise ArgumentError(
                f"{name}: {kernel.shared_bytes} static and {self.shared} dynamic bytes of shared memory; the most is "
                f"{MAX_SHARED}"
            )
        if len(self.params) != kernel.parameter_bytes:
            raise ArgumentError(
                f"{name}: {len(self.params)} bytes of parameters, but the kernel takes {kernel.parameter_bytes}"
            )
        if seconds is not None and not seconds > 0:
            raise ArgumentError(f"{name}: a launch needs more than 0 seconds, got {seconds}")


class RunningLaunch:
    """A launch whose arguments were checked, with `count` contexts that are filled: one for each worker, or for each block of
    those that take turns (`turns`). `device`: its number among several that run together. `overlaps`: it is one of several on
    one device that overlap, and may touch no memory but its own."""

    def __init__(
        self, launch: Launch, count: int, *, seed: int | None, budget: int | None, prints: Sink | None, turns: bool = False,
        device: int | None = None, overlaps: bool = False,
    ) -> None:  # fmt: skip
        kernel = self.kernel = launch.kernel
        self.launch, self.device, self.grid, self.block = launch, device, launch.grid3, launch.block3
        self.overlaps = overlaps
        on_device = "" if device is None or overlaps else f" on device {device}"
        self.title = f"{kernel.name}{on_device}"
        self.elsewhere = f" of {kernel.name}, a launch that may still run" if overlaps else on_device
        steps = budget or usual_budget(sanitize=kernel.sanitize)
        self._buffer, start = aligned(len(launch.params) + 2 * REDZONE)
        ctypes.memmove(start + REDZONE, launch.params, len(launch.params))
        self.memory = self._accessible(start + REDZONE)
        self._anew = turns and kernel.sanitize  # a shadow knows the epochs of one block, and here each has others
        self.scratches = [
            Scratch(kernel.facts, self.block, launch.shared) if self._anew else kernel.take(self.block, launch.shared)
            for _ in range(count)
        ]
        for scratch in self.scratches:
            c = scratch.context
            c[ContextWord.PARAMETERS], c[ContextWord.PARAMETER_BYTES] = start + REDZONE, len(launch.params)
            c[ContextWord.NCTAID_X], c[ContextWord.NCTAID_Y], c[ContextWord.NCTAID_Z] = self.grid
            c[ContextWord.QUANTUM] = SANITIZED_QUANTUM if kernel.sanitize or turns else QUANTUM
            c[ContextWord.TURN] = YIELD_COST
            c[ContextWord.BUDGET] = max(steps // c[ContextWord.QUANTUM] * YIELD_COST, YIELD_COST)
            c[ContextWord.DATA] = kernel.image.data_address
            c[ContextWord.EARLY] = launch.dependent
            c[ContextWord.CTA_ORDER] = c[ContextWord.WARP_ORDER] = c[ContextWord.FAULT_LINE] = c[ContextWord.TURNS] = 0
            c[ContextWord.HASTE] = 0 if seed is None else random.Random(seed).getrandbits(62) | 1
            c[ContextWord.WARP_AT] = c[ContextWord.SEEN] = c[ContextWord.IN_FLIGHT] = c[ContextWord.FREED] = c[
                ContextWord.LAUNCH_EPOCH
            ] = 0
            c[ContextWord.CTAID_X] = c[ContextWord.CTAID_Y] = c[ContextWord.CTAID_Z] = 0
        self._orders = self._shuffle(None if turns else launch.blocks, seed)
        self.run = kernel.run
        if kernel.facts.prints:
            data = (kernel.image.data_address, kernel.image.data_bytes)
            printer = Printer(self.scratches, prod(self.block), data, prints)
            self.run = printer.stopping(self.run)
            for scratch in self.scratches:
                scratch.context[ContextWord.PRINT] = printer.address

    def _accessible(self, parameters: int) -> MemoryMap:
        """What the launch may touch: what the caller says, the module's variables, the parameters."""
        if not self.kernel.sanitize:
            return MemoryMap()
        memory, variables = self.launch.memory, self.kernel.image.variables
        arguments = memory.allocations if memory is not None else {}
        block = Allocation(parameters, self.kernel.parameter_bytes, "the parameters", read_only=True, constant=True)
        return MemoryMap({**arguments, **{a.base: a for a in (*variables, block)}})

    def _shuffle(self, blocks: int | None, seed: int | None) -> list[Any]:
        """Fill in the orders of blocks, None where they take turns, and of warps; returns what must stay alive during the
        launch."""
        keep: list[Any] = []
        if seed is not None:
            shuffler, warps = random.Random(seed), self.scratches[0].context[ContextWord.WARP_COUNT]
            for slot, n in ((ContextWord.CTA_ORDER, blocks), (ContextWord.WARP_ORDER, warps)):
                if n is None:
                    continue
                order = list(range(n))
                shuffler.shuffle(order)
                array = (ctypes.c_int64 * n)(*order)
                keep.append(array)
                for scratch in self.scratches:
                    scratch.context[slot] = ctypes.addressof(array)
        return keep

    def watch(self) -> list[int] | None:
        """Have all findings go to the first scratch. Returns the addresses that the kernel may write through, None for any."""
        findings = self.scratches[0].findings
        findings.count = 0
        for scratch in self.scratches:
            scratch.context[ContextWord.FINDINGS] = ctypes.addressof(findings)
        kernel = self.kernel
        return target_addresses(self.scratches[0].context, kernel.facts.targets, kernel.parameters, kernel.image.variables)

    def checks(self) -> LaunchMap | None:
        """What the checks of a launch by itself look up, put into its contexts; None if it is not sanitised."""
        if not self.kernel.sanitize:
            return None
        contexts = [scratch.context for scratch in self.scratches]
        return LaunchMap(contexts, self.memory, self.launch.blocks, self.watch(), self.kernel.facts.synchronises)

    def findings(self, checks: LaunchMap, others: Sequence[RunningLaunch] = ()) -> list[Finding]:
        """What was found. `others`: the launches that ran together, this one among them, in the order of their blocks."""
        contexts = [list(scratch.context) for scratch in self.scratches]  # one for all blocks, or one for each
        found = self.scratches[0].findings
        return [
            self._finding(record, contexts[record.block % len(contexts)], checks, others or (self,))
            for record in found.records[: found.count]
        ]

    def _finding(self, record: FindingRecord, context: list[int], checks: LaunchMap, all: Sequence[RunningLaunch]) -> Finding:
        kind, image = FindingKind(record.kind), self.kernel.image
        text, location, source = image.source_of(record.line)
        space, address = classify(record, context)
        memory = self.memory if self.overlaps else checks.memory
        address = address if space else memory.original(address)
        other, against = None, None
        if kind in PAIRS:
            whose = checks.whose(Other.epoch_of(record))
            them = all[whose.launch]
            elsewhere = "" if them is self else them.elsewhere
            other = Other.of(record, whose.block, them.block, them.grid, elsewhere, whose.earlier)
            against = None if whose.earlier else Site(other.line, *them.kernel.image.source_of(other.line))
        return Finding(
            NAMES[kind], self.kernel.name, describe(record, self.title, context, memory, self.block, other), record.line,
            text, location, unflatten(record.thread, self.block), unflatten(record.block, self.grid), address, record.count,
            source, against,
        )  # fmt: skip

    def ended(self, scratch: Scratch, status: int, findings: list[Finding], limit: TimeLimit) -> list[Finding]:
        """What comes of it: the findings, with what stopped the block of this scratch as the last, or EmulationError where
        nothing is checked."""
        c, image = scratch.context, self.kernel.image
        if status == FINISHED:
            return findings
        kind, words = _MESSAGES[status]
        index = c[ContextWord.CTAID_X], c[ContextWord.CTAID_Y], c[ContextWord.CTAID_Z]
        line = c[ContextWord.FAULT_LINE] if status == TRAPPED else self._where_stuck(scratch)
        message = f"{self.title}, block ({index[0]},{index[1]},{index[2]}) {words}"
        if status == TIMED_OUT:
            message += f" after {limit.passed:.1f} s; its limit is seconds={limit.seconds:g}, and more, or None, lets it run on"
        text, location, source = image.source_of(line)
        finding = Finding(NAMES[kind], self.kernel.name, message, line, text, location, (0, 0, 0), index, 0, source=source)
        if self.kernel.sanitize:
            return [*findings, finding]
        raise EmulationError(finding)

    def _where_stuck(self, scratch: Scratch) -> int:
        """The line at which the first thread that has not finished is."""
        c = scratch.context
        lines = self.kernel.image.block_lines(self.kernel.name)
        for warp in range(c[ContextWord.WARP_COUNT]):
            state = c[ContextWord.WARPS] + warp * c[ContextWord.STATE_BYTES]
            for pc in (ctypes.c_uint32 * WARP_SIZE).from_address(state + State.PCS):
                if pc != EXITED and (pc & ~WAITING) < len(lines):
                    return lines[pc & ~WAITING]
        return lines[0] if lines else 0

    def give_back(self) -> None:
        """Keep for other launches what can serve them."""
        if not self._anew:
            self.kernel.keep(self.block, self.launch.shared, self.scratches)


def launch_together(
    launches: Sequence[Launch],
    *,
    seed: int | None = None,
    budget: int | None = None,
    seconds: float | None = None,
    prints: Sink | None = None,
) -> list[Finding]:
    """Run launches to their end whose blocks are all there at once and may wait for each other: of one (a cooperative launch),
    or of several, each on a device of its own, whose number is its place. They take turns on one thread, always in the same
    order unless a `seed` shuffles it. Each may touch the memory of all. Where there are several, what a thread publishes by a
    fence or a flag of `.gpu` scope is for those of its own device alone; `.sys` is for all (PTX ISA 8.5).

    Returns and raises as `Kernel.launch`; ArgumentError also for more than MOST_BLOCKS blocks in all, one less for each of
    several devices, and for two launches of one module with variables, which a device has for itself."""
    several = len(launches) > 1
    for launch in launches:
        launch.check(seconds)
    _check_together(launches)
    running: list[RunningLaunch] = []
    try:
        for number, launch in enumerate(launches):
            running.append(
                RunningLaunch(
                    launch,
                    launch.blocks,
                    seed=seed,
                    budget=allowed_steps(budget, seconds),
                    prints=prints,
                    turns=True,
                    device=number if several else None,
                )
            )
        checks = _checks_together(running) if launches[0].kernel.sanitize else None
        turns = [(one, number) for one in running for number in range(len(one.scratches))]
        limit = TimeLimit(seconds)
        status, worst = run_together([BlockTurn(one.run, one.scratches[number], number) for one, number in turns], seed, limit)
        findings = [] if checks is None else [finding for one in running for finding in one.findings(checks, running)]
        stopped, number = turns[worst]
        return stopped.ended(stopped.scratches[number], status, findings, limit)
    finally:
        for one in running:
            one.give_back()


def _check_together(launches: Sequence[Launch]) -> None:
    name, blocks = launches[0].kernel.name, sum(launch.blocks for launch in launches)
    if len(launches) == 1:
        if blocks > MOST_BLOCKS:
            raise ArgumentError(f"{name}: up to {MOST_BLOCKS} blocks can wait for each other; the grid has {blocks}")
        return
    if len({launch.kernel.sanitize for launch in launches}) > 1:
        raise ArgumentError(f"{name}: of launches that run together all are sanitised or none is")
    if blocks > (most := MOST_BLOCKS - len(launches)):
        raise ArgumentError(
            f"{name}: up to {most} blocks of {len(launches)} devices can wait for each other; the grids have {blocks}"
        )
    images = [launch.kernel.image for launch in launches if launch.kernel.image.data_bytes]
    if len({id(image) for image in images}) < len(images):
        raise ArgumentError(f"{name}: each device has variables of its own; load the module once for each")


def _checks_together(running: Sequence[RunningLaunch]) -> LaunchMap:
    """What the checks of launches that run together look up, put into the contexts of all."""
    contexts = [scratch.context for one in running for scratch in one.scratches]
    shift = min(c[ContextWord.GLOBAL_SHIFT] for c in contexts)
    for c in contexts:
        c[ContextWord.GLOBAL_SHIFT] = shift  # the shadow is one, so all have its granules
    memory, targets = MemoryMap(), set[int]()
    anywhere = False
    for one in running:
        of_device = "" if one.device is None else f" of device {one.device}"
        for base, allocation in one.memory.allocations.items():
            known = memory.allocations.get(base)
            if known is None or known.read_only:
                memory.allocations[base] = replace(allocation, name=f"{allocation.name}{of_device}")
        its = one.watch()
        anywhere = anywhere or its is None
        targets.update(its or ())
    return LaunchMap(
        contexts,
        memory,
        len(contexts),
        None if anywhere else targets,
        any(one.kernel.facts.synchronises for one in running),
        [len(one.scratches) for one in running],
        [one.launch.earlier for one in running],
    )


def usual_budget(*, sanitize: bool) -> int:
    """The backward jumps of a warp after which a kernel counts as endless where nothing says how many."""
    return SANITIZED_BUDGET if sanitize else DEFAULT_BUDGET


def allowed_steps(budget: int | None, seconds: float | None) -> int | None:
    """The budget that is given, or none where the launch was given more time than is usual."""
    return NO_BUDGET if budget is None and seconds is not None and seconds > DEFAULT_SECONDS else budget


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
