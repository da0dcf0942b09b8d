"""Times matrix-vector kernels on a GPU: a chain of launches, each on weights that the cache no longer holds, as one CUDA graph.

python -m benchmarks.gemv --names hw_dp4a_q4k_gemv --shapes 4096x4096,4096x128256 -o benchmarks/results/gemv.json
python -m benchmarks.gemv --names hw_dp4a_q4k_gemv --digits 1 --set num_warps=8,4 --set rows_per_warp=1,2,4 -o out.json
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.floor import READ_LIMIT, chain_microseconds
from benchmarks.record import summary, write
from executor.device.cuda import CudaDevice
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.measure.timing import FreshWeights, GemvTime, fresh_weights, time_gemv
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import KernelEntry, entries, find

SHAPES = "2048x2048,2048x8192,8192x2048,4096x4096,4096x6144,4096x14336,4096x28672,14336x4096,4096x128256"
"""K x N of Llama-3.2-1B and Llama-3.1-8B: one matrix, Q with K and V, gate with up, down, the output head."""


@click.command()
@click.option("--names", default=None, help="Kernels, by commas; default: every one for Q4_K and Q6_K but batched ones.")
@click.option("--shapes", default=SHAPES, help="KxN, by commas.")
@click.option("--set", "settings", multiple=True, help="name=value[,value...] of a parameter, for kernels that have it.")
@click.option("--digits", default=None, help="1, 2 or 3, or some by commas: as --set digits=...")
@click.option("--runs", default=15, help="Replays of a chain.")
@click.option("--device", "ordinal", default=0, help="Number of the GPU.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="A JSON file for the results.")
def main(
    names: str | None, shapes: str, settings: tuple[str, ...], digits: str | None, runs: int, ordinal: int,
    commit: str | None, output: Path | None,
) -> None:  # fmt: skip
    """Time kernels for shapes; print a table and write JSON."""
    chosen = [find(name) for name in names.split(",")] if names else list(_matrix_vector())
    sizes = [tuple(map(int, shape.split("x"))) for shape in shapes.split(",")]
    swept = dict(_setting(text) for text in (*settings, *([f"digits={digits}"] if digits else [])))
    results = []
    with CudaDevice(ordinal) as device:
        launcher = Launcher(device, Modules(device))
        for k, n in sizes:
            kernels = [kernel for entry in chosen for kernel in _kernels(entry, k, n, swept)]
            for _, group in itertools.groupby(kernels, key=lambda kernel: kernel.signature()["w"]):
                results += _measure(launcher, list(group), runs)
        record = {
            "what": "matrix-vector products, a chain of launches on fresh weights as one CUDA graph",
            "unit": "microseconds a launch: median, least and most of the replays",
            "kept": f"of {len(results)} results, for each kernel and shape the fastest and that of the default parameters",
            "runs": runs,
            "results": summary(results),
        }
        machine = device.describe()
    _print(results)
    if output is not None:
        write(output, record, machine, commit)


def _matrix_vector() -> Iterator[KernelEntry]:
    for entry in entries().values():
        if entry.type.family == "gemv" and entry.name.endswith(("q4k_gemv", "q6k_gemv")) and "batched" not in entry.name:
            yield entry


def _setting(text: str) -> tuple[str, list[Any]]:
    name, _, values = text.partition("=")
    return name, [{"True": True, "False": False}.get(value, value) for value in values.split(",")]


def _kernels(entry: KernelEntry, k: int, n: int, swept: dict[str, list[Any]]) -> Iterator[KernelType]:
    """The kernels of this name and shape, one for each combination of the swept parameters that it has."""
    names = [name for name in swept if name in entry.parameters]
    for values in itertools.product(*(swept[name] for name in names)):
        shape = {name: value if isinstance(value, bool) else int(value) for name, value in zip(names, values, strict=True)}
        try:
            yield entry.make(k=k, n=n, **shape)
        except ArgumentError as error:  # a strategy may have limits: x in shared memory at once, say
            click.echo(f"left out: {error}", err=True)


def _measure(launcher: Launcher, kernels: list[KernelType], runs: int) -> list[dict[str, Any]]:
    """Time kernels that read the same weights."""
    with fresh_weights(launcher.device, kernels[0]) as weights:
        return [record_of(kernel, weights, time_gemv(launcher, kernel, weights, runs)) for kernel in kernels]


def record_of(kernel: KernelType, weights: FreshWeights, time: GemvTime) -> dict[str, Any]:
    """What results keep of a kernel and its time."""
    median, least, most = (round(seconds * 1e6, 3) for seconds in (time.median, time.least, time.most))
    return {
        "kernel": kernel.name,
        "parameters": dict(kernel.parameters()),
        "weight_bytes": weights.buffers[0].nbytes,
        "buffers": len(weights.buffers),
        "microseconds": {"median": median, "min": least, "max": most},
        "registers": time.registers,
        "error_over_tolerance": round(time.off, 4),
    }


def _print(results: list[dict[str, Any]]) -> None:
    table = Table("kernel", "K x N", "parameters", "us", "min", "TB/s", "limit", "floor us", "of floor", "regs", box=None)
    for result in results:
        parameters = dict(result["parameters"])
        size = f"{parameters.pop('k')} x {parameters.pop('n')}"
        rest = " ".join(f"{name}={value}" for name, value in parameters.items())
        times, nbytes = result["microseconds"], result["weight_bytes"]
        rate, floor = nbytes / times["median"] * 1e6, chain_microseconds(nbytes)
        table.add_row(
            result["kernel"], size, rest, f"[bold]{times['median']:.2f}[/bold]", f"{times['min']:.2f}",
            f"{rate / 1e12:.2f}", f"{rate / READ_LIMIT:.0%}", f"{floor:.2f}", f"{floor / times['median']:.0%}",
            str(result["registers"]),
        )  # fmt: skip
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
