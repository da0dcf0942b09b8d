"""Times products of several rows by every strategy that a format has, each with the settings that its type holds to suit the
shape (ptxgen/kernels/gemm/suited.py): what the cost model of executor/choice is held to.

python -m benchmarks.suited_products -o benchmarks/results/suited-products-h200.json
python -m benchmarks.suited_products --formats q5k,q8_0_aligned --rows 2,32,512 -o ...

Some 120 s of an H200 with 16 processors (estimated), which compile first: each takes every so many kernels, for the cache on
the disk.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.record import write
from executor.choice.cost import strategies
from executor.device.cuda import CudaDevice
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.layers.batched import launched
from executor.measure.timing import fresh_weights, time_gemv
from ptxgen.commands.options import whole_numbers
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import PtxGenError
from ptxgen.formats import ALL

FORMATS: Final = "q5k,q4k,q6k_aligned,q8_0_aligned,iq3s,q4_0"
SHAPES: Final = ((4096, 4096), (4096, 14336), (14336, 4096))
"""K x N: of an 8B."""
ROWS: Final = (2, 8, 32, 128, 512)

Timed = tuple[str, int, int, int, KernelType]
"""A format by its id, k, n, rows and a kernel."""


def timed(formats: Sequence[str], rows: Sequence[int]) -> list[Timed]:
    """All that is timed; what reads the same weights stands together."""
    named = {format.id: format for format in ALL.values()}
    return [
        (id, k, n, m, kernel)
        for id in formats
        for k, n in SHAPES
        if k % named[id].block == 0
        for m in rows
        for kernel in strategies(named[id], k, n, m)
    ]


def _compile(names: Sequence[str], rows: Sequence[int], part: int, parts: int) -> int:
    """Compile every so many of the kernels, for the cache on the disk."""
    done = 0
    with CudaDevice(0) as device:
        modules = Modules(device)
        for *_, m, kernel in timed(names, rows)[part::parts]:
            try:
                modules.preload([form for form, _ in launched(kernel, m)])
            except PtxGenError as error:
                click.echo(f"{kernel}: {error}", err=True)
            done += 1
    return done


@click.command()
@click.option("--formats", default=FORMATS, show_default=True, help="Their ids, by commas.")
@click.option("--rows", default=",".join(map(str, ROWS)), show_default=True, help="Of activations, by commas.")
@click.option("--runs", default=3, help="Replays of a chain.")
@click.option("--seconds", default=420.0, help="No further weights are begun after so many.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True, help="A JSON file for the results.")
def main(formats: str, rows: str, runs: int, seconds: float, commit: str | None, output: Path) -> None:
    """Time all and write JSON after each matrix."""
    start = time.perf_counter()
    numbers = whole_numbers("--rows", rows, "numbers of rows", "2,512", low=2)
    names = formats.split(",")
    parts = max(1, len(os.sched_getaffinity(0)) - 1)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes below
    with ProcessPoolExecutor(parts, mp_context=multiprocessing.get_context("spawn")) as pool:
        done = [pool.submit(_compile, names, numbers, part, parts) for part in range(parts)]
        click.echo(f"{sum(one.result() for one in done)} compiled after {time.perf_counter() - start:.0f} s")
    groups: dict[tuple[str, int, int], list[tuple[int, KernelType]]] = defaultdict(list)
    for format, k, n, m, kernel in timed(names, numbers):
        groups[format, k, n].append((m, kernel))
    results: list[dict[str, Any]] = []
    with CudaDevice(0) as device:
        launcher = Launcher(device, Modules(device))
        for (format, k, n), group in groups.items():
            if time.perf_counter() - start > seconds:
                click.echo(f"out of time before {format} {k} x {n}")
                break
            with fresh_weights(device, group[0][1]) as weights:
                for m, kernel in group:
                    try:
                        times = [(count, time_gemv(launcher, form, weights, runs)) for form, count in launched(kernel, m)]
                    except PtxGenError as error:
                        click.echo(f"{kernel}: {error}", err=True)
                        continue
                    facts = {"kernel": kernel.name, "parameters": {**kernel.parameters(), "m": m}}
                    results.append(facts | {"microseconds": sum(count * time.median for count, time in times) * 1e6})
            click.echo(f"{time.perf_counter() - start:.0f} s: {format} {k} x {n}")
            write(output, {"what": "products of several rows", "runs": runs, "results": results}, device.describe(), commit)


if __name__ == "__main__":
    main()
