"""How long launches of any kernel take: in graphs of launches, each on arguments of its own that no cache holds any more, the
kernels in turn. What is done with the times is up to the caller."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.device.protocol import Device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher
from executor.measure.profiler import Limit
from executor.measure.timing import FRESH_BYTES, LEAST_LAUNCHES, MOST_BYTES, MOST_COPIES, WARM_UPS, freed
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.types import U8


@dataclass(frozen=True)
class KernelSpeed:
    """A kernel and the seconds of one of its launches, the mean of a graph of them, for each replay. limit: what the device
    does at most, None where nothing is claimed. copies: sets of arguments that the launches took in turn."""

    kernel: KernelType
    seconds: tuple[float, ...]
    limit: Limit | None
    copies: int
    registers: int

    @property
    def median(self) -> float:
        """Seconds of a launch."""
        return statistics.median(self.seconds)

    @property
    def least_possible(self) -> float | None:
        """Seconds that a launch takes at the roofline, that is for its work at the limit; None where that is not known."""
        return None if self.limit is None else self.limit.seconds(self.kernel.work())

    @property
    def share(self) -> float | None:
        """Of the roofline."""
        return None if self.least_possible is None else self.least_possible / self.median

    def facts(self) -> dict[str, Any]:
        """Ready for JSON. Bytes and operations are those of the kernel's `work`."""
        work = self.kernel.work()
        return {
            "kernel": self.kernel.name,
            "shape": {name: _plain(value) for name, value in self.kernel.parameters().items()},
            "microseconds": {
                "median": self.median * 1e6,
                "least": min(self.seconds) * 1e6,
                "most": max(self.seconds) * 1e6,
                "rounds": len(self.seconds),
            },
            "bytes": work.bytes,
            "flops": work.flops,
            "gbytes_per_second": work.bytes / self.median / 1e9,
            "gflops_per_second": work.flops / self.median / 1e9,
            "share_of_roofline": self.share,
            "copies": self.copies,
            "registers": self.registers,
        }


def time_kernels(
    launcher: Launcher,
    kernels: Sequence[KernelType],
    rounds: int,
    *,
    limit: Limit | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[KernelSpeed]:
    """Time each kernel `rounds` times on its own random inputs, in turn, so that a GPU that becomes warm favours none.

    On a GPU as many sets of arguments are there as it takes that each has left the cache when its turn comes again; where they
    are too small for that, the cache is filled with something else before each replay. The emulator gets one set: its times are
    the CPU's. Errors as Launcher.prepare, and ArgumentError for a kernel of several devices."""
    if several := [kernel for kernel in kernels if kernel.launch().ranks > 1]:
        raise ArgumentError(
            f"{several[0]} waits for its launches on {several[0].launch().ranks} devices; this times one device"
        )
    report = progress or (lambda done, total: None)
    device = launcher.device
    with ExitStack() as stack:
        buffers = stack.enter_context(freed(device))
        chains = [_Chain(launcher, kernel, buffers) for kernel in kernels]
        for chain in chains:
            stack.callback(chain.graph.close)
        scratch: GpuBuffer | None = None
        if device.kind == "cuda" and any(chain.bytes < FRESH_BYTES for chain in chains):
            buffers.append(scratch := GpuBuffer.empty(device, U8, (FRESH_BYTES,), "scratch"))
        for chain in chains:
            for _ in range(WARM_UPS if device.kind == "cuda" else 1):
                chain.graph.replay()
        for number in range(rounds):
            for chain in chains:
                chain.time(device, scratch)
            report(number + 1, rounds)
        return [
            KernelSpeed(chain.kernel, tuple(chain.seconds), limit, chain.copies, chain.plans[0].loaded.registers)
            for chain in chains
        ]


class _Chain:
    """A graph of launches of one kernel, on sets of its arguments in turn. What it allocates goes to `buffers`."""

    def __init__(self, launcher: Launcher, kernel: KernelType, buffers: list[GpuBuffer]) -> None:
        device = launcher.device
        self.kernel, self.seconds = kernel, list[float]()
        given = kernel.inputs(np.random.default_rng(0))
        arrays = {name: one for name, one in kernel.signature().items() if isinstance(one, Array)}
        a_set = sum(array.nbytes for array in arrays.values())
        fitting = min(-(-FRESH_BYTES // a_set), MOST_BYTES // a_set, MOST_COPIES)
        self.copies = max(2, fitting) if device.kind == "cuda" else 1
        self.bytes = self.copies * a_set
        first: dict[str, GpuBuffer] = {}
        self.plans = []
        for _ in range(self.copies):
            own: dict[str, GpuBuffer] = {}
            for name, array in arrays.items():
                if name in first:
                    buffers.append(one := GpuBuffer.empty(device, array.dtype, array.shape, name))
                    device.copy(one.pointer, first[name].pointer, one.nbytes)
                else:
                    buffers.append(one := GpuBuffer.from_numpy(device, given[name], array.dtype, name))
                own[name] = one
            first = first or own
            self.plans.append(launcher.prepare(kernel, **(given | own)))
        launches = self.plans * -(-LEAST_LAUNCHES // len(self.plans)) if device.kind == "cuda" else self.plans
        self.launches = len(launches)
        self.graph = LaunchGraph(device, launches)

    def time(self, device: Device, scratch: GpuBuffer | None) -> None:
        """Replay the graph once."""
        if scratch is not None:
            scratch.fill(0)
        start = device.record()
        self.graph.replay()
        self.seconds.append(device.elapsed(start, device.record()) / self.launches)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else str(value)
