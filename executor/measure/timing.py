"""How long kernels take: a chain of launches as one graph, each on weights that no cache holds any more. bandwidth.py, tuning
and benchmarks say what is timed; profiler.py times the launches of a model."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from executor.device.protocol import Device, DeviceMemory
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import PtxGenError
from ptxgen.types import U8

WARM_UPS: Final = 3
"""Runs that are not timed, so that clocks and caches are as they are later."""
LEAST_LAUNCHES: Final = 8
"""Launches of a chain on a GPU: fewer would be lost beside starting the graph."""
FRESH_BYTES: Final = 256 << 20
"""A chain reads so much before it comes to the same weights again: several times the cache of any GPU."""
MOST_BYTES: Final = 6 << 30
MOST_COPIES: Final = 256
"""Launches of a chain; where they read less than FRESH_BYTES, the cache is filled with something else before each run."""
CHECKED_ROWS: Final = 256
"""Rows of distinct weights, which are repeated; the first so many results are compared with the reference."""


def chain_seconds(device: Device, plans: Sequence[Plan], runs: int, scratch: GpuBuffer | None = None) -> list[float]:
    """Seconds of one launch, the mean of all plans launched as one graph, for each of `runs`. On the emulator it is the time of
    the host's clock. scratch: overwritten before each run, so that the cache holds nothing else."""
    with closing(LaunchGraph(device, plans)) as graph:
        for _ in range(WARM_UPS if device.kind == "cuda" else 1):
            graph.replay()
        times = []
        for _ in range(runs):
            if scratch is not None:
                scratch.fill(0)
            start = device.record()
            graph.replay()
            times.append(device.elapsed(start, device.record()) / len(plans))
        return times


def repeated(device: DeviceMemory, rows: NDArray[Any], array: Array) -> GpuBuffer:
    """A buffer for this argument with these rows over and over; `rows` are its first."""
    buffer = GpuBuffer.empty(device, array.dtype, array.shape)
    done = min(rows.nbytes, buffer.nbytes)
    device.upload(buffer.pointer, np.ascontiguousarray(rows[: array.shape[0]]))
    while done < buffer.nbytes:
        size = min(done, buffer.nbytes - done)
        device.copy(buffer.pointer + done, buffer.pointer, size)
        done += size
    return buffer


@dataclass(frozen=True)
class FreshWeights:
    """Copies of one random weight matrix, so many that each is out of the cache when its turn comes again; scratch: what drives
    them out where they are too few and small. rows: the first of each."""

    rows: NDArray[np.uint8]
    buffers: tuple[GpuBuffer, ...]
    scratch: GpuBuffer | None


@contextmanager
def freed(device: DeviceMemory) -> Iterator[list[GpuBuffer]]:
    """A list whose buffers are freed when the block ends."""
    buffers: list[GpuBuffer] = []
    try:
        yield buffers
    finally:
        if not device.closed:
            for buffer in buffers:
                buffer.free()


@contextmanager
def fresh_weights(device: Device, kernel: KernelType) -> Iterator[FreshWeights]:
    """The weights `w` of a matrix-vector kernel, u8[n, row bytes], random and never zeros; freed when the block ends. The
    emulator gets one copy, since its times mean nothing for a GPU."""
    weights = array_argument(kernel, "w")
    rows = _sample(kernel).inputs(np.random.default_rng(0))["w"]
    copies = min(-(-FRESH_BYTES // weights.nbytes), MOST_BYTES // weights.nbytes, MOST_COPIES)
    count = max(2, copies) if device.kind == "cuda" else 1
    scratch: GpuBuffer | None = None
    with freed(device) as buffers:
        for _ in range(count):
            buffers.append(repeated(device, rows, weights))
        if device.kind == "cuda" and count * weights.nbytes < FRESH_BYTES:
            buffers.append(scratch := GpuBuffer.empty(device, U8, (FRESH_BYTES,), "scratch"))
        yield FreshWeights(rows, tuple(buffers[:count]), scratch)


@dataclass(frozen=True)
class GemvTime:
    """Seconds of one launch: median, least, most. error: of the result, its root mean square relative to that of the reference,
    whose activations are f32 where the kernel takes such. off: the largest error in units of the tolerance (at most 1)."""

    median: float
    least: float
    most: float
    error: float
    off: float
    registers: int


def time_gemv(launcher: Launcher, kernel: KernelType, weights: FreshWeights, runs: int) -> GemvTime:
    """Time a matrix-vector kernel on these weights. PtxGenError if what it computes is beyond its tolerance."""
    device = launcher.device
    sample = _sample(kernel)
    inputs = {**sample.inputs(np.random.default_rng(1)), "w": weights.rows[: array_argument(kernel, "w").shape[0]]}
    y = array_argument(kernel, "y")
    with freed(device) as buffers:
        arguments: dict[str, GpuBuffer] = {}
        for name in kernel.signature():
            if name in kernel.scratch:  # of which the sample has less
                own = array_argument(kernel, name)
                buffers.append(GpuBuffer.zeros(device, own.dtype, own.shape))
                arguments[name] = buffers[-1]
            elif name not in ("w", "y"):
                buffers.append(GpuBuffer.from_numpy(device, inputs[name]))
                arguments[name] = buffers[-1]
        buffers.append(result := GpuBuffer.zeros(device, y.dtype, y.shape))
        plans = [launcher.prepare(kernel, w=copy, y=result, **arguments) for copy in weights.buffers]
        if device.kind == "cuda":
            plans *= -(-LEAST_LAUNCHES // len(plans))
        seconds = chain_seconds(device, plans, runs, weights.scratch)
        computed = result.to_numpy()[..., : len(inputs["w"])].astype("f8")
    expected = sample.reference(**inputs)["y"]
    wrong = computed - expected
    off = float(np.max(np.abs(wrong) / sample.tolerance(**inputs)["y"]))
    if not off <= 1:
        raise PtxGenError(f"{kernel} is wrong on {device.name}: {off:.2g} times the tolerance off")
    error = float(np.sqrt(np.mean(wrong**2) / np.mean(expected**2)))
    return GemvTime(statistics.median(seconds), min(seconds), max(seconds), error, off, plans[0].loaded.registers)


def _sample(kernel: KernelType) -> KernelType:
    """The kernel for the first rows only, so that the host can make its weights and its reference."""
    return replace(kernel, n=min(CHECKED_ROWS, array_argument(kernel, "w").shape[0]))  # type: ignore[call-arg]


def array_argument(kernel: KernelType, name: str) -> Array:
    """The array that a kernel takes under this name."""
    argument = kernel.signature()[name]
    assert isinstance(argument, Array)
    return argument
