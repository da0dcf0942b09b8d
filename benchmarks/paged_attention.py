"""Times the attention of the rows of a step over a paged cache: chunks of prompts in tiles by tensor cores, and rows on their
own, in two launches and in one; and that of one token over the contiguous cache of `generate`.

python -m benchmarks.paged_attention --device cuda:0 -o benchmarks/results/paged-attention-h200.json
python -m benchmarks.paged_attention --device cuda:0 --decode -o benchmarks/results/decode-attention-h200.json

Several layers' caches are read in turn, by one graph whose launches wait for each other. `TFLOP/s` counts each product of two
numbers once, however many halves they have.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.flash_attention import MOST_WARPS, WARPS_ALLOWED, FlashAttention, tiles_of
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.attention.paged_cache import TILE
from ptxgen.kernels.attention.paged_last_block import PagedAttentionLastBlock
from ptxgen.kernels.attention.suited import LEAST, SPLITS, splits_for, spread_of
from ptxgen.kernels.attention.token_split import LastBlock

PAGE_LEN = 32
MOST_BLOCKS = 528
WAYS = ((64, 128, 32, 384), (64, 128, 16, 512), (32, 128, 16, 512), (64, 64, 16, 512))
"""Splits, least, tile and resident threads of paged_attention_merged, with which nothing is spilled on sm_90."""


@dataclass(frozen=True)
class Case:
    """Rows that end at position `end`, exclusive: of one sequence, or of `rows` sequences if `apart`. kernel: what attends;
    parts, warps: of flash_attention; resident: of the others, threads over pages, blocks of grouped_attention; splits, least,
    tile: of rows on their own; blocks: how many they may have in all."""

    rows: int
    end: int
    kv_type: str
    kernel: str
    parts: int | None = None
    warps: int = MOST_WARPS
    resident: int = 256
    apart: bool = False
    splits: int = SPLITS
    least: int = LEAST
    tile: int = TILE
    blocks: int = MOST_BLOCKS

    def __str__(self) -> str:
        how = f"{self.parts} parts, {self.warps} warps" if self.parts is not None else f"{self.resident} resident"
        if "paged" in self.kernel:
            how += f", {self.splits} x {self.least} by {self.tile}, {self.blocks} blocks"
        return f"{self.rows:>5} rows to {self.end:>5}  {self.kv_type:<4}  {self.kernel}, {how}"

    @property
    def seen(self) -> int:
        """Positions that the rows see, in all."""
        if self.apart:
            return self.rows * self.end
        return self.rows * (self.end - self.rows) + self.rows * (self.rows + 1) // 2

    @property
    def slots(self) -> int:
        """Sequences that have pages."""
        return self.rows if self.apart else 1


def chunk_cases(max_len: int, *, quick: bool) -> Iterator[Case]:
    """Prompts' chunks, short runs both ways, one row."""
    for kv_type, parts in (("f32", 2), ("f32", 1), ("f16", 2), ("f16", 1)):
        for end in (512, max_len):
            for warps in WARPS_ALLOWED:
                yield Case(512, end, kv_type, "flash_attention", parts, warps)
    if quick:
        return
    yield Case(2048, max_len, "f32", "flash_attention", 2)
    for end in (512, max_len):
        yield Case(512, end, "f32", "paged_attention")
        for rows in (32, 64):
            yield Case(rows, end, "f32", "flash_attention", 2)
            yield Case(rows, end, "f32", "paged_attention")
    for kv_type in ("f32", "f16", "q8_0"):
        for resident in (256, 384, 512):
            for end in (512, max_len):
                yield Case(1, end, kv_type, "paged_attention", resident=resident)


def decode_cases(max_len: int) -> Iterator[Case]:
    """One token of one sequence over its own cache, and of one or several over pages, dealt out in many ways."""
    ends = [*dict.fromkeys(min(end, max_len) for end in (64, 192, 512, 2048, 8192))]
    for end in ends:
        yield Case(1, end, "f32", "incremental_attention", resident=1)
        for resident in (1, 2):
            yield Case(1, end, "f32", "grouped_attention", resident=resident)
        for kv_type, resident in (("f32", 384), ("f16", 512)):
            for rows in (1, 8):
                for kernel in ("paged_attention", "paged_attention_merged"):
                    yield Case(rows, end, kv_type, kernel, resident=resident, apart=True)
    for rows in (1, 4, 8, 32):
        for end in ends if rows < 32 else ends[:3]:
            for splits, least, tile, resident in WAYS:
                for blocks in (132, 264, MOST_BLOCKS):
                    yield Case(
                        rows, end, "f32", "paged_attention_merged", resident=resident, apart=True, splits=splits, least=least,
                        tile=tile, blocks=blocks,
                    )  # fmt: skip


@click.command()
@click.option("--model", type=click.Choice(sorted(MODELS)), default="llama-3.1-8b", help="Whose shape.")
@click.option("--device", default="auto")
@click.option("--max-len", default=8192, help="Positions of the cache.")
@click.option("--layers", default=4, help="Caches in turn, so that none is in the L2 cache.")
@click.option("--runs", default=5)
@click.option("--quick", is_flag=True, help="Chunks of 512 rows in tiles alone.")
@click.option("--decode", is_flag=True, help="Tokens of one and of eight sequences instead.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(
    model: str, device: str, max_len: int, layers: int, runs: int, quick: bool, decode: bool, commit: str | None, output: Path
) -> None:  # fmt: skip
    """Time each case and write the result as JSON; times are microseconds a layer, medians of the runs."""
    shape = MODELS[model]
    results = []
    with open_device(device) as opened:
        launcher = Launcher(opened, Modules(opened))
        cases = decode_cases(max_len) if decode else chunk_cases(max_len, quick=quick)
        for (kv_type, slots), own in _by_cache(cases).items():
            longest = max(case.end for case in own)
            pages = slots * longest // PAGE_LEN
            paged = PagedShape(shape.kv_heads, shape.head_dim, PAGE_LEN, pages, slots, longest, kv_type)
            caches = [_cache(opened, paged, layer) for layer in range(layers)]
            for case in own:
                plans = _plans(launcher, case, shape.heads, paged, caches)
                seconds = _seconds(opened, plans, runs) / layers
                flops = 4 * case.seen * shape.heads * shape.head_dim
                results.append({**vars(case), "microseconds": 1e6 * seconds, "tflops": flops / seconds / 1e12})
                click.echo(f"{case!s:66} {1e6 * seconds:9.1f} us  {flops / seconds / 1e12:7.1f} TFLOP/s")
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


def _by_cache(cases: Iterable[Case]) -> dict[tuple[str, int], list[Case]]:
    """By how the cache holds values, and for how many sequences."""
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.kv_type, case.slots), []).append(case)
    return groups


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
    device, rng = launcher.device, np.random.default_rng(1)
    queries = rng.standard_normal((case.rows, heads, shape.head_dim), np.float32)
    if case.kernel in ("incremental_attention", "grouped_attention"):
        kernels: list[KernelType] = [_of_one_token(case, heads, shape)]
        arrays = {"q": queries[0], "length": np.array([case.end], np.uint32)}
        caches = [_contiguous(cache, shape) for cache in caches]
    else:
        slot = np.arange(case.rows, dtype=np.uint32) if case.apart else np.zeros(case.rows, np.uint32)
        last = np.full(case.rows, case.end - 1) if case.apart else np.arange(case.end - case.rows, case.end)
        tables = rng.permutation(shape.pages).astype(np.uint32).reshape(shape.slots, -1)
        arrays = {"q": queries, "slot": slot, "position": last.astype(np.uint32), "tables": tables}
        if case.kernel == "flash_attention":
            rows_of_tile = _flash(case, heads, shape, 1).tile_rows
            arrays["tiles"] = tiles_of(slot, arrays["position"], rows_of_tile)
            kernels = [_flash(case, heads, shape, len(arrays["tiles"]))]
        else:
            kernels = _over_pages(case, heads, shape)
    shared = {name: GpuBuffer.from_numpy(device, array, name=name) for name, array in arrays.items()}
    for kernel in kernels:
        for name, argument in kernel.signature().items():
            if isinstance(argument, Array) and (argument.direction == "out" or argument.zeros):
                shared[name] = GpuBuffer.zeros(device, argument.dtype, argument.shape, name)
    return [
        launcher.prepare(kernel, **{name: (shared | cache)[name] for name in kernel.signature()})
        for cache in caches
        for kernel in kernels
    ]


def _flash(case: Case, heads: int, shape: PagedShape, tiles: int) -> FlashAttention:
    assert case.parts is not None
    return FlashAttention(rows=case.rows, heads=heads, **vars(shape), tiles=tiles, parts=case.parts, most_warps=case.warps)


def _over_pages(case: Case, heads: int, shape: PagedShape) -> list[KernelType]:
    """The launches of rows on their own."""
    given: dict[str, Any] = {
        "splits": case.splits,
        "least": case.least,
        "tile": case.tile,
        "spread": spread_of(shape.kv_heads, case.rows, case.blocks),
        "resident_threads": case.resident,
    }
    if case.kernel == "paged_attention_merged":
        return [PagedAttentionLastBlock(rows=case.rows, heads=heads, **vars(shape), **given)]
    reduce = PagedAttentionReduce(rows=case.rows, heads=heads, head_dim=shape.head_dim, max_len=shape.max_len)
    return [PagedAttention(rows=case.rows, heads=heads, **vars(shape), **given), reduce]


def _of_one_token(case: Case, heads: int, shape: PagedShape) -> KernelType:
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "max_len": shape.max_len}
    if case.kernel == "incremental_attention":
        return ContiguousAttention(indirect=True, **sizes)
    splits = splits_for(shape.kv_heads, case.resident)
    return ContiguousAttention(indirect=True, **sizes, split=LastBlock(splits, resident=case.resident))


def _contiguous(cache: Mapping[str, GpuBuffer], shape: PagedShape) -> dict[str, GpuBuffer]:
    """The same memory as the cache of one sequence: whose position is where matters to no time."""
    one = (shape.kv_heads, shape.max_len, shape.head_dim)
    return {name: buffer.view(0, one) for name, buffer in cache.items()}


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
