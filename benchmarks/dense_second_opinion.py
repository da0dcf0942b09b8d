"""Times products of quantised weights and many rows of activations by our kernels and, as a second opinion, by cuBLASLt: on
weights that are dequantised to f16 before each product, on weights held in f16, and in FP8 (e4m3); with the error of each.

python -m benchmarks.dense_second_opinion -o benchmarks/results/dense-second-opinion-h200.json    # needs the extra `cublas`
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.cublaslt import Captured, Matmul, bindings
from benchmarks.record import write
from executor.base.environment import PRECISIONS
from executor.choice.choice import GpuProfile
from executor.device.cuda import CudaDevice
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.measure.timing import (
    CHECKED_ROWS,
    FRESH_BYTES,
    array_argument,
    freed,
    fresh_weights,
    repeated,
    time_gemv,
)
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import read
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import FORMATS, Format
from ptxgen.kernels.accuracy import with_outlier
from ptxgen.kernels.registry import entries, find
from ptxgen.types import F16, F32, U8

SHAPES: Final = "4096x6144,4096x4096,4096x28672,14336x4096"
"""K x N of a layer of Llama-3.1-8B: Q with K and V, output, gate with up, down."""
ROWS: Final = "32,64,512"
LARGEST_E4M3: Final = 448.0


@dataclass(frozen=True)
class Timed:
    """Microseconds of a product; error: its mean square error relative to that of the exact product in float64, of activations
    one channel of which is at 26 times their root mean square. parts: of the time."""

    way: str
    microseconds: float
    error: float | None
    parts: Mapping[str, float]


@click.command()
@click.option("--shapes", default=SHAPES, help="KxN, by commas.")
@click.option("--rows", default=ROWS, help="Rows of activations, by commas.")
@click.option("--formats", default="Q4_K", help="Of the weights, by commas.")
@click.option("--runs", default=9)
@click.option("--device", "ordinal", default=0, help="Number of the GPU.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="A JSON file for the results.")
def main(shapes: str, rows: str, formats: str, runs: int, ordinal: int, commit: str | None, output: Path | None) -> None:
    """Time products for shapes and rows; print a table and write JSON."""
    library = bindings()
    results = []
    with CudaDevice(ordinal) as device:
        launcher = Launcher(device, Modules(device))
        for name in formats.split(","):
            for k, n in (tuple(map(int, shape.split("x"))) for shape in shapes.split(",")):
                for m in map(int, rows.split(",")):
                    timed = [*_ours(launcher, FORMATS[name], k, n, m, runs), *_theirs(launcher, FORMATS[name], k, n, m, runs)]
                    results += [{"format": name, "k": k, "n": n, "m": m, **vars(one)} for one in timed]
        machine = device.describe() | {"cublaslt": library.get_version()}
    _print(results)
    if output is not None:
        write(output, {"what": "matrix products: ours, and by cuBLASLt", "runs": runs, "results": results}, machine, commit)


def _ours(launcher: Launcher, format: Format, k: int, n: int, m: int, runs: int) -> Iterator[Timed]:
    """What the profile of each precision chooses, and every kernel on halves that there is."""
    chosen: dict[KernelType, str] = {}
    for precision in PRECISIONS:
        profile = replace(GpuProfile.for_device(launcher.device), precision=precision)
        kernel = profile.choose(format, k, n, rows=m).kernel
        if array_argument(kernel, "y").size == m * n:
            chosen[kernel] = precision
    for entry in entries().values():
        if entry.type.family == "gemm" and entry.fixed.get("format") is format and "parts" in entry.parameters:
            for parts, precision in ((2, "accurate"), (1, "fast")):
                chosen.setdefault(entry.make(k=k, n=n, m=m, parts=parts), precision)
    for kernel, precision in chosen.items():
        with fresh_weights(launcher.device, kernel) as weights:
            time = time_gemv(launcher, kernel, weights, runs)
        yield Timed(f"{kernel.name}, {precision}", time.median * 1e6, None, {})


def _theirs(launcher: Launcher, format: Format, k: int, n: int, m: int, runs: int) -> Iterator[Timed]:
    """cuBLASLt's ways."""
    device = launcher.device
    assert isinstance(device, CudaDevice)
    decode = find(f"{format.id}_dequant_f16").make(k=k, n=n)
    rng = np.random.default_rng(1)
    x = with_outlier(rng, m, k)
    with fresh_weights(device, decode) as weights, freed(device) as buffers, ExitStack() as open_things:
        rows = weights.rows[:CHECKED_ROWS]
        exact = x.astype("f8") @ format.dequantize(rows).astype("f8").T
        halves = GpuBuffer.from_numpy(device, x.astype(np.float16), F16, "x")
        y = GpuBuffer.empty(device, F32, (m, n), "y")
        work = GpuBuffer.empty(device, F16, (n, k), "weights")
        buffers += [halves, y, work]
        plans = [launcher.prepare(decode, y=work, w=copy) for copy in weights.buffers]

        def decode_all() -> None:
            for plan in plans:
                plan()

        decoding = open_things.enter_context(closing(Captured(device, decode_all)))
        decode_us = statistics.median(decoding.seconds(runs)) * 1e6 / len(plans)
        product = open_things.enter_context(closing(Matmul(device, k, n, m)))

        def both() -> None:
            for plan in plans:
                plan()
                product(work, halves, y)

        product_us = _best(device, product, [work], halves, y, runs)
        together = open_things.enter_context(closing(Captured(device, both)))
        both_us = statistics.median(together.seconds(runs)) * 1e6 / len(plans)
        error = _error(y, exact)
        parts = {"dequantise": decode_us, "product": product_us}
        yield Timed("dequantise to f16, cuBLASLt", both_us, error, parts)
        copies = [work]
        while len(copies) * work.nbytes < FRESH_BYTES or len(copies) < 2:
            copies.append(GpuBuffer.empty(device, F16, (n, k), "weights"))
            buffers.append(copies[-1])
            device.copy(copies[-1].pointer, work.pointer, work.nbytes)
        yield Timed("f16 held, cuBLASLt", _best(device, product, copies, halves, y, runs), error, {})
    yield from _fp8(device, format, rows, x, exact, n, runs)


def _fp8(
    device: CudaDevice, format: Format, rows: NDArray[Any], x: NDArray[Any], exact: NDArray[Any], n: int, runs: int
) -> Iterator[Timed]:
    """Weights and activations as e4m3, each with one scale for all."""
    (m, k), weights = x.shape, format.dequantize(rows)
    (w8, w_scale), (x8, x_scale) = e4m3(weights), e4m3(x)
    with freed(device) as buffers:
        shape = read(U8, n, k)
        for _ in range(max(2, -(-FRESH_BYTES // shape.nbytes))):
            buffers.append(repeated(device, w8, shape))
        copies = list(buffers)
        given, y = GpuBuffer.from_numpy(device, x8, U8, "x"), GpuBuffer.empty(device, F32, (m, n), "y")
        buffers += [given, y]
        for fast in (False, True):
            with closing(Matmul(device, k, n, m, "e4m3", fast=fast)) as product:
                us = _best(device, product, copies, given, y, runs)
            way = "FP8 held, cuBLASLt" + (", fast sums" if fast else "")
            yield Timed(way, us, _error(y, exact, w_scale * x_scale), {})


def _best(device: CudaDevice, product: Matmul, weights: list[GpuBuffer], x: GpuBuffer, y: GpuBuffer, runs: int) -> float:
    """Microseconds of the fastest algorithm, which `product` keeps; each launch on the next weights."""
    times = {}
    rounds = max(1, 8 // len(weights))

    def chain() -> None:
        for copy in weights * rounds:
            product(copy, x, y)

    for algorithm in range(product.algorithms):
        product.chosen = algorithm
        with closing(Captured(device, chain)) as work:
            times[algorithm] = statistics.median(work.seconds(runs)) * 1e6 / (rounds * len(weights))
    product.chosen = min(times, key=times.__getitem__)
    return times[product.chosen]


def _error(y: GpuBuffer, exact: NDArray[Any], scale: float = 1.0) -> float:
    got = y.to_numpy()[:, : exact.shape[1]].astype("f8") * scale
    return float(np.mean((got - exact) ** 2) / np.mean(exact**2))


def e4m3(values: NDArray[Any]) -> tuple[NDArray[np.uint8], float]:
    """Values as bytes of FP8 with 4 bits of exponent (OCP 8-bit floating point specification), to nearest, and the scale that
    they were divided by, which makes the largest 448."""
    scale = float(np.abs(values).max()) / LARGEST_E4M3 or 1.0
    codes = np.arange(127)  # 127 itself is NaN
    exponent, fraction = codes >> 3, codes & 7
    sizes = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    between = (sizes[1:] + sizes[:-1]) / 2
    found = np.searchsorted(between, np.abs(values) / scale).astype(np.uint8)
    return found | (np.signbit(values).astype(np.uint8) << 7), scale


def _print(results: list[dict[str, Any]]) -> None:
    table = Table("weights", "K x N", "rows", "way", "us", "NMSE", "of that", box=None)
    for one in results:
        parts = ", ".join(f"{name} {us:.1f}" for name, us in one["parts"].items())
        error = "" if one["error"] is None else f"{one['error']:.1e}"
        size = f"{one['k']} x {one['n']}"
        table.add_row(one["format"], size, str(one["m"]), one["way"], f"{one['microseconds']:.1f}", error, parts)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
