"""How long a gather takes, in a graph of as many as a step has: by the bytes of a rank's slice, by our kernel and by NCCL.

PTXGEN_GATHERS=1 python -m benchmarks.all_gather --devices cuda:0,cuda:1 -o benchmarks/results/all-gather-h200x2.json

By PTXGEN_GATHERS=1 the devices have both; by `nccl` NCCL alone, which needs no peer access; without it our kernel alone.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.record import write
from executor.device import open_devices
from executor.device.gathers import Gathers
from executor.device.protocol import Device
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.layers.calls import LaunchBatch
from executor.layers.graph.gathers import GatherParts
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue
from executor.measure.timing import chain_seconds
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.commands.options import whole_numbers
from ptxgen.errors import PtxGenError
from ptxgen.types import F32

SLICES: Final = "4096,8192,16384,32768,57344,131072,256512,1048576,4194304,16777216,67108864"
"""Bytes of a rank's slice: among them the hidden and gated values of the 8B and the 70B on two GPUs, and the logits; then those
of prompts."""
LAUNCHES: Final = 200


@click.command()
@click.option("--devices", default="cuda:0,cuda:1", show_default=True, metavar="NAME,...")
@click.option("--bytes", "sizes", default=SLICES, show_default=True, metavar="N,...", help="Of a rank's slice.")
@click.option(
    "--rows", default=1, type=click.IntRange(1), show_default=True, help="That share these bytes: tokens of a prompt."
)
@click.option("--launches", default=LAUNCHES, type=click.IntRange(2), show_default=True, help="Of a graph.")
@click.option("--runs", default=9, type=click.IntRange(1), show_default=True)
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(devices: str, sizes: str, rows: int, launches: int, runs: int, commit: str | None, output: Path) -> None:
    """Time gathers of each size and write the result as JSON."""
    slices = whole_numbers("--bytes", sizes, "numbers of bytes", SLICES, low=F32.bytes * rows)
    with open_devices(devices.split(",")) as opened:
        results = [
            timed(opened, nbytes // F32.bytes // rows, launches, runs, rows=rows, way=way)
            for nbytes in slices
            for way in ways(opened)
        ]
        record = {
            "what": "a gather on each GPU, in a graph; bytes: of a rank's slice of all rows",
            "unit": f"us a gather, its launch included: median, least and most of {runs} graphs of {launches}",
            "results": results,
        }
        write(output, record, opened.describe(), commit)
    for one in results:
        click.echo(f"{one['bytes']:9} bytes by {one['way']}: {one['us']} us ({one['least']} to {one['most']})")


def ways(device: Device) -> dict[str, Gathers]:
    """By what this device can gather."""
    both = {"ours": (device.gathers.peers, Gathers()), "nccl": (device.gathers.nccl, Gathers(0, "a benchmark"))}
    return {way: gathers for way, (has, gathers) in both.items() if has}


def timed(device: Device, columns: int, launches: int, runs: int, *, rows: int = 1, way: str = "ours") -> dict[str, Any]:
    """Gathers of a layer's, one after another into two arrays in turn. PtxGenError if what they leave is wrong."""
    n = columns * device.ranks
    random = np.random.default_rng(columns).standard_normal((rows, columns), np.float32)
    x = GpuBuffer.from_numpy(device, random)  # the same on all ranks
    wholes = [GpuBuffer.zeros(device, F32, (rows, n), f"whole {number}") for number in range(2)]
    before, device.gathers = device.gathers, ways(device)[way]
    try:
        with Workspace(device) as workspace:
            both = [_plans(device, workspace, x, whole) for whole in wholes]
            plans = [plan for number in range(launches) for plan in both[number % 2]]
            seconds = [second * len(both[0]) for second in chain_seconds(device, plans, runs)]
            if any(not np.array_equal(whole.to_numpy(), np.tile(random, device.ranks)) for whole in wholes):
                raise PtxGenError(f"{plans[0].kernel} on {device.name} has not gathered what was to be gathered")
    finally:
        device.gathers = before
    us = [round(second * 1e6, 2) for second in (statistics.median(seconds), min(seconds), max(seconds))]
    shape = {"way": way, "rows": rows, "bytes": x.nbytes, "ranks": device.ranks}
    return shape | dict(zip(("us", "least", "most"), us, strict=True))


def _plans(device: Device, workspace: Workspace, x: GpuBuffer, whole: GpuBuffer) -> list[Plan]:
    """What a layer launches to gather; NCCL's slices of several rows are put side by side by one more launch."""
    batch = LaunchBatch(Launcher(device, Modules(device)), workspace)
    perform(batch, [GatherParts(name="timed", own=StepValue.of(x), whole=StepValue.of(whole))])
    return batch.take()


if __name__ == "__main__":
    main()
