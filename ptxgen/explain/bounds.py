"""What a kernel asks of each unit of a GPU: instructions by unit, and the least time that each unit needs for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ptxgen.dsl.ir import Op
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.gpus.gpu import Gpu
from ptxgen.isa.units import Unit, lane_bytes
from ptxgen.target import WARP_SIZE

ISSUE = "issue slots"
LOAD_STORE = "loads and stores"
MEMORY = "memory, nominal"
READ_LIMIT = "memory, measured"


@dataclass(frozen=True)
class Mix:
    """Instructions of one thread by unit, and the bytes that it moves to and from global and shared memory."""

    instructions: dict[Unit, int]
    global_bytes: int
    shared_bytes: int
    load_store_clocks: float  # of a whole warp, at 128 bytes a clock

    @property
    def total(self) -> int:
        """Instructions of all units."""
        return sum(self.instructions.values())


@dataclass(frozen=True)
class Bound:
    """The least time a unit needs: `clocks` of a multiprocessor for one warp and one pass of the inner loop (None where the
    loop does not use it), `seconds` for the launch with the work spread evenly. `share` is of the largest `seconds`."""

    unit: str
    clocks: float | None
    seconds: float
    share: float


def mix(ops: Iterable[tuple[Op, int]], load_store_bytes: int) -> Mix:
    """The mix of instructions, each with how often it runs."""
    counts: Counter[Unit] = Counter()
    moved = {Unit.GLOBAL: 0, Unit.SHARED: 0}
    clocks = 0.0
    for op, times in ops:
        kind = op.row.unit_of(op.modifiers)
        counts[kind] += times
        if kind in moved:
            size = lane_bytes(op.modifiers, op.operands)
            moved[kind] += size * times
            clocks += max(1.0, size * WARP_SIZE / load_store_bytes) * times
    ordered = {kind: counts[kind] for kind in Unit if counts[kind]}
    return Mix(ordered, moved[Unit.GLOBAL], moved[Unit.SHARED], clocks)


def bounds(gpu: Gpu, launch: LaunchConfig, work: Work, whole: Mix, inner: Mix) -> tuple[Bound, ...]:
    """The bounds by unit, the tightest first. Loads are taken to be coalesced and free of bank conflicts, divisions to be one
    instruction, tensor instructions to cost an issue slot only: real kernels take longer."""
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    warps = blocks * -(-launch.threads // WARP_SIZE) / min(gpu.multiprocessors, blocks)
    seconds = {MEMORY: work.bytes / (gpu.bandwidth_gbps * 1e9)}
    if gpu.read_gbps:
        seconds[READ_LIMIT] = work.bytes / (gpu.read_gbps * 1e9)
    seconds |= {unit: clocks * warps / (gpu.clock_mhz * 1e6) for unit, clocks in _clocks(gpu, whole).items()}
    longest, of_pass = max(seconds.values()), _clocks(gpu, inner)
    tightest_first = sorted(seconds.items(), key=lambda item: -item[1])
    return tuple(Bound(unit, of_pass.get(unit), time, time / longest if longest else 0.0) for unit, time in tightest_first)


def _clocks(gpu: Gpu, mix: Mix) -> dict[str, float]:
    """Clocks of a multiprocessor for one warp, by unit."""
    sm = gpu.multiprocessor
    clocks = {ISSUE: mix.total / sm.issue, LOAD_STORE: mix.load_store_clocks}
    clocks |= {kind.value: count * WARP_SIZE / sm.rates[kind] for kind, count in mix.instructions.items() if kind in sm.rates}
    return {name: count for name, count in clocks.items() if count}
