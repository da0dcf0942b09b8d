"""Times one token's attention: a block a head with few or many warps, and split over blocks with chunks of several sizes.

python -m benchmarks.attention --device cuda:0 -o benchmarks/results/attention-h200.json

A launch costs the host several microseconds, so shorter times than about 10 us are the host's and not the kernel's.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.models import MODELS
from benchmarks.record import write
from executor.device import open_device
from executor.device.protocol import Device
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.registry import find
from ptxgen.types import F32, U32

WARPS = (1, 2, 4, 8)
CHUNKS = (32, 64, 128, 256, 512)


@click.command()
@click.option("--model", type=click.Choice(sorted(MODELS)), default="llama-3.1-8b", help="Whose shape.")
@click.option("--device", default="auto")
@click.option("--max-len", default=16384, help="Positions of the cache.")
@click.option("--lengths", default="64,512,2048,8192,16384", help="Positions in use.")
@click.option("--layers", default=8, help="Caches in turn, so that none is in the L2 cache.")
@click.option("--runs", default=15)
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(
    model: str, device: str, max_len: int, lengths: str, layers: int, runs: int, commit: str | None, output: Path
) -> None:  # fmt: skip
    """Time attention at several lengths and write the result as JSON; times are microseconds a layer, medians of the runs."""
    shape = MODELS[model]
    sizes: dict[str, Any] = {"heads": shape.heads, "head_dim": shape.head_dim, "max_len": max_len}
    grouped = {**sizes, "kv_heads": shape.kv_heads}
    variants: dict[str, list[KernelType]] = {
        f"{warps} warps": [find("multi_warp_attention_indirect").make(**grouped, num_warps=warps)] for warps in WARPS
    }
    for chunk in CHUNKS:
        reduce = find("split_attention_reduce").make(**sizes, chunk=chunk)
        variants[f"chunks of {chunk}"] = [find("split_attention_indirect").make(**grouped, chunk=chunk), reduce]
    times: dict[str, dict[str, float]] = {name: {} for name in variants}
    with open_device(device) as opened:
        launcher = Launcher(opened, Modules(opened))
        rng = np.random.default_rng(1)
        cache = (shape.kv_heads, max_len, shape.head_dim)
        rows = {name: rng.standard_normal(cache, np.float32) for name in ("k_cache", "v_cache")}
        caches = [{name: GpuBuffer.from_numpy(opened, rows[name], F32, name) for name in rows} for _ in range(layers)]
        for length in map(int, lengths.split(",")):
            shared = {
                "length": GpuBuffer.from_numpy(opened, np.array([length], np.uint32), U32, "length"),
                "q": GpuBuffer.from_numpy(opened, rng.standard_normal((shape.heads, shape.head_dim), np.float32), F32, "q"),
            }
            for name, kernels in variants.items():
                plans = _prepare(launcher, kernels, shared, caches)
                times[name][str(length)] = 1e6 * _seconds(opened, plans, runs) / layers
        record = {
            "what": "attention of one token, microseconds a layer, by positions in use",
            "shape": {**grouped, "model": model},
            "microseconds": times,
            "runs": runs,
        }
        write(output, record, opened.describe(), commit)
    for name, measured in times.items():
        click.echo(f"{name:14}" + "".join(f"{length:>7}: {time:8.1f} us" for length, time in measured.items()))


def _prepare(
    launcher: Launcher, kernels: list[KernelType], shared: dict[str, GpuBuffer], caches: list[dict[str, GpuBuffer]]
) -> list[Plan]:
    """The launches of one pass over all caches; the kernels of a layer hand over through buffers of the same names."""
    between = {
        name: GpuBuffer.empty(launcher.device, argument.dtype, argument.shape, name)
        for kernel in kernels
        for name, argument in kernel.signature().items()
        if isinstance(argument, Array) and argument.direction == "out"
    }
    everything = [{**shared, **between, **cache} for cache in caches]
    return [
        launcher.prepare(kernel, **{name: buffers[name] for name in kernel.signature()})
        for buffers in everything
        for kernel in kernels
    ]


def _seconds(device: Device, plans: list[Plan], runs: int) -> float:
    """The median time of all the plans, after a pass that warms up."""
    times = []
    for _ in range(runs + 1):
        start = device.record()
        for plan in plans:
            plan()
        end = device.record()
        device.synchronize()
        times.append(device.elapsed(start, end))
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
