"""Host time of what a token does on a GPU, through executor.device and through NVIDIA's cuda.core, in turns: the table of
docs/design-records/cuda-core.md. Needs a GPU and cuda-core 1.x (`pip install cuda-core`), which nothing else here does.

python -m benchmarks.cuda_core
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import click
import numpy as np
from cuda import core

from executor.device.cuda import CudaDevice
from executor.device.parameters import ParameterBlock
from executor.device.protocol import Node
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Scalar, read
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.toolchain.module import emit
from ptxgen.types import F32, U32

ROUNDS: Final = 15
NODES: Final = 300
EMPTY: Final = """.version 7.8
.target sm_80
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .f32 d, .param .u32 e)
{
    ret;
}
"""


class Pair(NamedTuple):
    """One thing done in both ways, so many times a round."""

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    calls: int = 500


def launches(device: CudaDevice, stream: Any) -> list[Pair]:
    """An empty kernel of five parameters, one of the catalogue, and a graph of the first."""
    loaded, _ = device.load(EMPTY, "nothing")
    block = ParameterBlock({**{name: read(F32, 4) for name in "abc"}, "d": Scalar(F32), "e": Scalar(U32)})
    pointers = [device.alloc(256) for _ in "abc"]
    for name, value in zip("abcde", (*pointers, 1.5, 7), strict=True):
        block.set(name, value)
    kernel, one = core.ObjectCode.from_ptx(EMPTY.encode()).get_kernel("nothing"), core.LaunchConfig(grid=1, block=32)
    arguments = (*pointers, np.float32(1.5), np.uint32(7))

    add = AddInPlace(n=4096)
    buffers = {name: GpuBuffer.zeros(device, F32, (4096,)) for name in add.signature()}
    text = emit(add, device.target)
    add_kernel = core.ObjectCode.from_ptx(text.text.encode()).get_kernel(text.entry)
    geometry = core.LaunchConfig(grid=add.launch().grid, block=add.launch().block)
    addresses = [buffer.pointer for buffer in buffers.values()]

    nodes = [Node(loaded, (1, 1, 1), (32, 1, 1), block, (i - 1,) if i else ()) for i in range(NODES)]
    ours = device.make_graph(nodes)

    def define() -> Any:
        definition = core.graph.GraphDefinition()
        node = definition
        for _ in nodes:
            node = node.launch(one, kernel, *arguments)
        return definition.instantiate()

    theirs = define()
    return [
        Pair(
            "launch of five arguments",
            lambda: device.launch(loaded, (1, 1, 1), (32, 1, 1), block),
            lambda: core.launch(stream, one, kernel, *arguments),
        ),
        Pair(
            "launch of residual_add",
            Launcher(device, Modules(device)).prepare(add, **buffers),
            lambda: core.launch(stream, geometry, add_kernel, *addresses),
        ),
        Pair(f"start a graph of {NODES}", lambda: device.launch_graph(ours), lambda: theirs.launch(stream), calls=50),
        Pair(f"make a graph of {NODES}", lambda: device.free_graph(device.make_graph(nodes)), define, calls=5),
    ]


def others(device: CudaDevice, stream: Any, theirs: Any) -> list[Pair]:
    """Events, waiting, memory."""
    timed = core.EventOptions(timing_enabled=True)
    event = stream.record(options=timed)
    return [
        Pair("record an event, timed", device.record, lambda: stream.record(options=timed)),
        Pair("record an event that is there", device.record, lambda: stream.record(event)),
        Pair("wait for an idle stream", device.synchronize, stream.sync),
        Pair(
            "allocate and free 1 MiB",
            lambda: device.free(device.alloc(1 << 20)),
            lambda: theirs.allocate(1 << 20, stream=stream).close(stream),
            calls=100,
        ),
    ]


def microseconds(call: Callable[[], object], finish: Callable[[], object], calls: int) -> float:
    """Host time of one call, the device idle before; what it does on the device is waited for afterwards."""
    finish()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    finish()
    return seconds / calls * 1e6


def import_milliseconds(module: str) -> float:
    """The quickest of five imports, each in a process of its own."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    times = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(done.stdout) for done in times) * 1e3


@click.command()
def main() -> None:
    """Print both times of each thing, microseconds a call, medians of rounds in turns."""
    theirs = core.Device(0)
    theirs.set_current()
    stream = theirs.create_stream()
    with CudaDevice() as device:
        packages = ", ".join(f"{name} {version(name)}" for name in ("cuda-core", "cuda-bindings"))
        click.echo(f"{device.name}, {packages}, Python {sys.version.split()[0]}\n{'':34}{'executor':>10}{'cuda-core':>10}")
        for pair in [*launches(device, stream), *others(device, stream, theirs)]:
            rounds = [
                (microseconds(pair.ours, device.synchronize, pair.calls), microseconds(pair.theirs, stream.sync, pair.calls))
                for _ in range(ROUNDS)
            ]
            ours, other = (statistics.median(times) for times in zip(*rounds, strict=True))
            click.echo(f"{pair.name:34}{ours:10.1f}{other:10.1f}")
    ours, other = import_milliseconds("cuda.bindings.driver"), import_milliseconds("cuda.core")
    click.echo(f"{'import, milliseconds':34}{ours:10.0f}{other:10.0f}")


if __name__ == "__main__":
    main()
