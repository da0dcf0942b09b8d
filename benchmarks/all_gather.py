"""How long `all_gather` takes, in a graph of as many as a step has: by the bytes of a rank's slice.

python -m benchmarks.all_gather --devices cuda:0,cuda:1 -o benchmarks/results/all-gather-h200x2.json
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.record import write
from executor.device import open_devices
from executor.device.protocol import Device
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.measure.timing import chain_seconds
from executor.memory.buffers import GpuBuffer
from ptxgen.commands.options import whole_numbers
from ptxgen.errors import PtxGenError
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.types import F32, U32, U64

SLICES: Final = "4096,8192,16384,32768,57344,131072,256512"
"""Bytes of a rank's slice: among them the hidden and gated values of the 8B and the 70B on two GPUs, and the logits."""
LAUNCHES: Final = 200


@click.command()
@click.option("--devices", default="cuda:0,cuda:1", show_default=True, metavar="NAME,...")
@click.option("--bytes", "sizes", default=SLICES, show_default=True, metavar="N,...", help="Of a rank's slice.")
@click.option("--launches", default=LAUNCHES, type=click.IntRange(2), show_default=True, help="Of a graph.")
@click.option("--runs", default=9, type=click.IntRange(1), show_default=True)
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(devices: str, sizes: str, launches: int, runs: int, commit: str | None, output: Path) -> None:
    """Time gathers of each size and write the result as JSON."""
    slices = whole_numbers("--bytes", sizes, "numbers of bytes", SLICES, low=F32.bytes)
    with open_devices(devices.split(",")) as opened:
        results = [timed(opened, nbytes // F32.bytes, launches, runs) for nbytes in slices]
        record = {
            "what": "all_gather, a launch on each GPU, in a graph; bytes: of a rank's slice",
            "unit": f"us a gather, its launch included: median, least and most of {runs} graphs of {launches}",
            "results": results,
        }
        write(output, record, opened.describe(), commit)
    for one in results:
        click.echo(f"{one['bytes']:7} bytes, {one['blocks']:2} blocks: {one['us']} us ({one['least']} to {one['most']})")


def timed(device: Device, columns: int, launches: int, runs: int) -> dict[str, Any]:
    """Gathers one after another into two arrays in turn. PtxGenError if what they leave is wrong."""
    kernel = AllGather(n=columns * device.ranks, ranks=device.ranks)
    random = np.random.default_rng(columns).standard_normal((1, columns), np.float32)
    x = GpuBuffer.from_numpy(device, random)  # the same on all ranks
    wholes = [GpuBuffer.zeros(device, F32, (1, kernel.n)) for _ in range(2)]
    flags = GpuBuffer.zeros(device, U32, (kernel.blocks, kernel.ranks))
    both = list(_plans(device, kernel, x, wholes, flags))
    seconds = chain_seconds(device, [both[number % 2] for number in range(launches)], runs)
    if any(not np.array_equal(whole.to_numpy(), np.tile(random, device.ranks)) for whole in wholes):
        raise PtxGenError(f"{kernel} on {device.name} has not gathered what was to be gathered")
    us = [round(second * 1e6, 2) for second in (statistics.median(seconds), min(seconds), max(seconds))]
    shape = {"bytes": F32.bytes * columns, "ranks": kernel.ranks, "blocks": kernel.blocks}
    return shape | dict(zip(("us", "least", "most"), us, strict=True))


def _plans(
    device: Device, kernel: AllGather, x: GpuBuffer, wholes: list[GpuBuffer], flags: GpuBuffer
) -> Iterator[Plan]:  # fmt: skip
    launcher = Launcher(device, Modules(device))

    def addresses(buffer: GpuBuffer) -> GpuBuffer:
        return GpuBuffer.from_numpy(device, np.array(device.peers(buffer.pointer), np.uint64), U64)

    peers = addresses(flags)
    for whole in wholes:
        yield launcher.prepare(kernel, y=whole, x=x, flags=flags, ys=addresses(whole), peers=peers, rank=0)


if __name__ == "__main__":
    main()
