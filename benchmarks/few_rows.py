"""Times products of few rows by f16 tensor cores, and of many rows of Q6_K in aligned blocks, with the settings that may suit a
large GPU: what benchmarks/tuning_table.py chooses from. Weights are made once for all kernels that read them.

python -m benchmarks.few_rows -o benchmarks/results/gemm-few-rows-8b-h200.json
python -m benchmarks.few_rows --rows 64,128,256 -o benchmarks/results/gemm-many-sequences-8b-h100.json
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.gemv import record_of
from benchmarks.record import write
from executor.device.cuda import CudaDevice
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.measure.timing import fresh_weights, time_gemv
from ptxgen.commands.options import whole_numbers
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemm.held_f16 import ABREAST
from ptxgen.kernels.quantize.f16_split import WINDOW
from ptxgen.kernels.registry import find
from ptxgen.kernels.suited import MULTIPROCESSORS

SHAPES: Final = {
    "q4k": ((4096, 1024), (4096, 4096), (4096, 5120), (4096, 6144), (4096, 14336), (4096, 28672), (14336, 4096)),
    "q6k_aligned": ((4096, 1024), (14336, 4096), (4096, 128256)),
}
"""K x N of Llama-3.1-8B as Q4_K_M: one matrix, Q with K and with V, gate with up, down, the output head."""
ROWS: Final = (2, 4, 8, 16, 32)
MANY: Final = 512
MOST_TILES: Final = 16

Settings = dict[str, Any]


def kernels(rows: Sequence[int] = ROWS) -> Iterator[KernelType]:
    """Those that are timed: neighbours read the same weights. Settings that a kernel cannot have are left out."""
    for format, shapes in SHAPES.items():
        for k, n in shapes:
            for parts, m in itertools.product((2, 1), rows):
                few = (*_stationary(k, n, m, parts), *_staged(format, k, n, m)) if m <= ROWS[-1] else ()
                for family, settings in few or _sequences(format, k, n, m, parts):
                    with suppress(ArgumentError):
                        yield find(f"{family}_{format}_gemm").make(k=k, n=n, m=m, parts=parts, **settings)
            if rows == ROWS and format == "q6k_aligned" and n < MULTIPROCESSORS * 64:
                for parts, columns, unpacked in itertools.product((2, 1), (64, 128), (2, 4)):
                    if columns == 128 // parts:
                        settings = {"warpgroups": 2, "columns": columns, "stages": 2, "unpacked": unpacked}
                        yield find(f"wgmma_{format}_gemm").make(k=k, n=n, m=MANY, parts=parts, **settings)


def _stationary(k: int, n: int, m: int, parts: int) -> Iterator[tuple[str, Settings]]:
    """One slice of k, and some: a block for each multiprocessor, or more where these would have too many tiles. With one slice
    fewer stages, too, and twice as many warps."""
    columns = -(-min(m, 32 // parts) // 8) * 8
    windows, tiles = k // WINDOW, -(-n // 16) * -(-m // columns)
    for slices in (1, 2) if n > MULTIPROCESSORS * 16 else (1, 4):
        each = windows // slices
        split = next(warps for warps in (8, 7, 4) if each % warps == 0)
        usual = {
            "columns": columns, "slices": slices, "split": split, "chains": 4 if columns == 8 else 1, "stages": 3,
            "row_tiles": min(-(-tiles * slices // MULTIPROCESSORS), MOST_TILES), "resident_threads": 256,
            "abreast": parts == 2 and m <= ABREAST,
        }  # fmt: skip
        yield "stationary", usual
        if slices == 1:
            yield "stationary", usual | {"stages": 2}
        if slices == 1 and columns == 8 and (parts == 1 or m <= ABREAST):  # others would spill
            yield "stationary", usual | {"stages": 2, "split": 16, "chains": 1, "resident_threads": 512}


def _staged(format: str, k: int, n: int, m: int) -> Iterator[tuple[str, Settings]]:
    """Wider blocks, whose weights come through shared memory, and blocks of one warpgroup, which load them."""
    if m < ROWS[-2]:
        return
    unpacked, widest = (4, 4) if format == "q4k" else (2, 2)
    for warpgroups in {2, widest}:
        most = max(1, min(k // WINDOW, MULTIPROCESSORS // -(-n // (64 * warpgroups))))
        slices = -(-k // WINDOW // -(-k // WINDOW // most))
        yield "wgmma", {"warpgroups": warpgroups, "columns": m, "staged": True, "slices": slices, "unpacked": unpacked}
    if n > MULTIPROCESSORS * 64:
        yield "wgmma", {"warpgroups": 1, "columns": m, "stages": 2, "unpacked": unpacked}


def _sequences(format: str, k: int, n: int, m: int, parts: int) -> Iterator[tuple[str, Settings]]:
    """For the tokens of many sequences: weights in registers, or through shared memory in slices that fill the GPU."""
    unpacked = 4 if format == "q4k" or parts == 1 else 2
    for warpgroups, columns in ((1, 64), (2, 64), (3, 64), (4, 64), (2, 128)):
        if columns < 2 * m and (warpgroups < 4 or format == "q4k"):
            yield "wgmma", {"warpgroups": warpgroups, "columns": columns, "stages": 2, "unpacked": unpacked}
    for warpgroups in (2, 4):
        most = max(1, min(k // WINDOW, MULTIPROCESSORS // (-(-n // (64 * warpgroups)) * -(-m // 64))))
        slices = -(-k // WINDOW // -(-k // WINDOW // most))
        yield "wgmma", {"warpgroups": warpgroups, "columns": 64, "staged": True, "slices": slices, "unpacked": unpacked}


@click.command()
@click.option("--rows", default=",".join(map(str, ROWS)), show_default=True, help="Of activations, by commas.")
@click.option("--runs", default=3, help="Replays of a chain.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True, help="A JSON file for the results.")
def main(rows: str, runs: int, commit: str | None, output: Path) -> None:
    """Time all, print a line for each and write JSON."""
    results = []
    numbers = tuple(whole_numbers("--rows", rows, "numbers of rows", "64,128", low=2))
    with CudaDevice(0) as device:
        modules = Modules(device)
        launcher = Launcher(device, modules)
        for _, group in itertools.groupby(kernels(numbers), key=lambda kernel: kernel.signature()["w"]):
            same = list(group)
            modules.preload(same)  # compiled side by side
            with fresh_weights(device, same[0]) as weights:
                for kernel in same:
                    results.append(record_of(kernel, weights, time_gemv(launcher, kernel, weights, runs)))
                    click.echo(f"{results[-1]['microseconds']['median']:9.2f} us  {kernel}")
        record = {
            "what": "products of few rows, and of Q6_K in aligned blocks, on fresh weights as one CUDA graph",
            "unit": "microseconds a launch: median, least and most of the replays",
            "runs": runs,
            "results": results,
        }
        write(output, record, device.describe(), commit)


if __name__ == "__main__":
    main()
