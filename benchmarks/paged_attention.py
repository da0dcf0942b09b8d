"""Times the attention of the rows of a step over a paged cache: chunks of prompts in tiles by tensor cores, and rows on their
own.

python -m benchmarks.paged_attention --device cuda:0 -o benchmarks/results/paged-attention-h200.json

Several layers' caches are read in turn, by one graph whose launches wait for each other. `TFLOP/s` counts each product of two
numbers once, however many halves they have.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from benchmarks.models import MODELS
from benchmarks.record import write
from executor.device import open_device
from executor.device.protocol import Device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.paged_cache import PagedShape
from ptxgen.dsl.kernel_type import Array, KernelType
from ptxgen.kernels.attention.flash_attention import FlashAttention, tiles_of
from ptxgen.kernels.attention.paged_attention import PagedAttention, spread_of
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce

PAGE_LEN = 32


@dataclass(frozen=True)
class Case:
    """Rows of one sequence that end at position `end`, exclusive. parts: of flash_attention, None for paged_attention with so
    many resident threads."""

    rows: int
    end: int
    kv_type: str
    parts: int | None
    resident: int = 256

    def __str__(self) -> str:
        how = f"paged, {self.resident} threads" if self.parts is None else f"tiles, {self.parts} parts"
        return f"{self.rows:>5} rows to {self.end:>5}  {self.kv_type:<4}  {how}"

    @property
    def seen(self) -> int:
        """Positions that the rows see, in all."""
        return self.rows * (self.end - self.rows) + self.rows * (self.rows + 1) // 2


def cases(max_len: int, *, quick: bool) -> Iterator[Case]:
    """What is timed: prompts' chunks, short runs both ways, one row."""
    for kv_type, parts in (("f32", 2), ("f32", 1), ("f16", 2), ("f16", 1)):
        for end in (512, max_len):
            yield Case(512, end, kv_type, parts)
    if quick:
        return
    yield Case(2048, max_len, "f32", 2)
    for end in (512, max_len):
        yield Case(512, end, "f32", None)
        for rows in (32, 64):
            yield Case(rows, end, "f32", 2)
            yield Case(rows, end, "f32", None)
    for kv_type in ("f32", "f16", "q8_0"):
        for resident in (256, 384, 512):
            for end in (512, max_len):
                yield Case(1, end, kv_type, None, resident)


@click.command()
@click.option("--model", type=click.Choice(sorted(MODELS)), default="llama-3.1-8b", help="Whose shape.")
@click.option("--device", default="auto")
@click.option("--max-len", default=8192, help="Positions of the cache.")
@click.option("--layers", default=4, help="Caches in turn, so that none is in the L2 cache.")
@click.option("--runs", default=5)
@click.option("--quick", is_flag=True, help="Chunks of 512 rows in tiles alone.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(
    model: str, device: str, max_len: int, layers: int, runs: int, quick: bool, commit: str | None, output: Path
) -> None:  # fmt: skip
    """Time each case and write the result as JSON; times are microseconds a layer, medians of the runs."""
    shape = MODELS[model]
    results = []
    with open_device(device) as opened:
        launcher = Launcher(opened, Modules(opened))
        for kv_type, own in _by_type(list(cases(max_len, quick=quick))).items():
            paged = PagedShape(shape.kv_heads, shape.head_dim, PAGE_LEN, max_len // PAGE_LEN, 1, max_len, kv_type)
            caches = [_cache(opened, paged, layer) for layer in range(layers)]
            for case in own:
                plans = _plans(launcher, case, shape.heads, paged, caches)
                seconds = _seconds(opened, plans, runs) / layers
                flops = 4 * case.seen * shape.heads * shape.head_dim
                results.append({**vars(case), "microseconds": 1e6 * seconds, "tflops": flops / seconds / 1e12})
                click.echo(f"{case!s:42} {1e6 * seconds:9.1f} us  {flops / seconds / 1e12:7.1f} TFLOP/s")
            for cache in caches:
                for buffer in cache.values():
                    buffer.free()
        record = {
            "what": "attention of the rows of a step over a paged cache, microseconds a layer",
            "shape": {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "model": model},
            "runs": runs,
            "results": results,
        }
        write(output, record, opened.describe(), commit)


def _by_type(cases: list[Case]) -> dict[str, list[Case]]:
    types: dict[str, list[Case]] = {}
    for case in cases:
        types.setdefault(case.kv_type, []).append(case)
    return types


def _cache(device: Device, shape: PagedShape, seed: int) -> dict[str, GpuBuffer]:
    """Random keys and values of a layer, as large as those of models."""
    rng = np.random.default_rng(seed)
    kind = PagedAttention(rows=1, heads=shape.kv_heads, **vars(shape)).kv
    x = rng.standard_normal((shape.pages, shape.kv_heads, shape.page_len, shape.head_dim), np.float32)
    names = [name for name, array in shape.caches().items() if isinstance(array, Array)]
    arrays = [*kind.encode(x), *kind.encode(x[::-1])]
    return {name: GpuBuffer.from_numpy(device, array, name=name) for name, array in zip(names, arrays, strict=True)}


def _plans(
    launcher: Launcher, case: Case, heads: int, shape: PagedShape, caches: list[dict[str, GpuBuffer]]
) -> list[Plan]:  # fmt: skip
    rows, device = case.rows, launcher.device
    position = np.arange(case.end - rows, case.end, dtype=np.uint32)
    slot = np.zeros(rows, np.uint32)
    rng = np.random.default_rng(1)
    arrays = {
        "q": rng.standard_normal((rows, heads, shape.head_dim), np.float32),
        "slot": slot,
        "position": position,
        "tables": rng.permutation(shape.pages).astype(np.uint32)[None],
    }
    kernels: list[KernelType]
    if case.parts is not None:
        tile_rows = FlashAttention(rows=rows, heads=heads, **vars(shape), tiles=1, parts=case.parts).tile_rows
        arrays["tiles"] = tiles_of(slot, position, tile_rows)
        kernels = [FlashAttention(rows=rows, heads=heads, **vars(shape), tiles=len(arrays["tiles"]), parts=case.parts)]
    else:
        spread = spread_of(shape.kv_heads, rows)
        parts = PagedAttention(rows=rows, heads=heads, **vars(shape), spread=spread, resident_threads=case.resident)
        kernels = [parts, PagedAttentionReduce(rows=rows, heads=heads, head_dim=shape.head_dim, max_len=shape.max_len)]
    shared = {name: GpuBuffer.from_numpy(device, array, name=name) for name, array in arrays.items()}
    for kernel in kernels:
        for name, argument in kernel.signature().items():
            if isinstance(argument, Array) and argument.direction == "out":
                shared[name] = GpuBuffer.empty(device, argument.dtype, argument.shape, name)
    return [
        launcher.prepare(kernel, **{name: (shared | cache)[name] for name in kernel.signature()})
        for cache in caches
        for kernel in kernels
    ]


def _seconds(device: Device, plans: list[Plan], runs: int) -> float:
    """The median time of all the plans as a graph, after one that warms up."""
    graph, times = LaunchGraph(device, plans), []
    for _ in range(runs + 1):
        start = device.record()
        graph.replay()
        end = device.record()
        device.synchronize()
        times.append(device.elapsed(start, end))
    graph.close()
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
