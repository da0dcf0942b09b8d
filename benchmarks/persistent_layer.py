"""Times persistent_layer with settings that may suit a large GPU: launches one after another as one graph, each of a layer
whose weights the cache no longer holds; each waits for the one before it, or is dependent and then waits.

python -m benchmarks.persistent_layer -o benchmarks/results/persistent-layer-8b-h200.json
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.record import write
from executor.choice.persistent import PersistentGrid
from executor.device import open_device
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.measure.timing import FRESH_BYTES, LEAST_LAUNCHES, chain_seconds, freed
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.errors import ArgumentError
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer

SHAPES: Final = {
    "8b": (4096, 4096, 1024, 14336), "1b": (2048, 2048, 512, 8192), "qwen2.5-7b": (3584, 3584, 512, 18944),
    "qwen2.5-1.5b": (1536, 1536, 256, 8960), "qwen3-0.6b": (1024, 2048, 1024, 3072),
}  # fmt: skip
"""Hidden values, those of queries, of keys, and gated ones."""
SETTINGS: Final = {"num_warps": (8, 16), "rows_per_warp": (4, 3, 2), "pipeline_stages": (8, 6, 5, 4, 3)}


def layer(shape: tuple[int, int, int, int], main: str, finer: str, digits: int) -> PersistentLayer:
    """A layer of a model, attn_v and ffn_down in the finer format, and every input as so many int8 planes."""
    hidden, queries, keys, ffn = shape
    of_digits: dict[str, Any] = dict.fromkeys(("attended_digits", "gate_digits", "down_digits", "next_digits"), digits)
    formats = main, main, finer, main, main, finer
    return PersistentLayer(hidden, queries, ffn, *formats, queries=queries, keys=keys, blocks=1, **of_digits)


def settings(kernel: PersistentLayer, grid: PersistentGrid) -> Iterator[PersistentLayer]:
    """The kernel as it is chosen, and with all settings that its GPU has shared memory for."""
    yield grid.fitted(partial(replace, kernel))
    for values in itertools.product(*SETTINGS.values()):
        try:
            chosen: dict[str, Any] = dict(zip(SETTINGS, values, strict=True))
            made = replace(kernel, blocks=grid.blocks, **chosen)
        except ArgumentError:  # fewer stages than rows, or more memory than any GPU has
            continue
        if made != grid.fitted(partial(replace, kernel)) and made.runs_on(grid.target):
            yield made


@contextmanager
def layers(device: Device, kernel: PersistentLayer) -> Iterator[list[dict[str, Any]]]:
    """The arguments of as many layers as the cache does not hold, freed when the block ends."""
    sample = kernel.inputs(np.random.default_rng(0))
    signature = kernel.signature()
    copies = max(2, -(-FRESH_BYTES // kernel.work().bytes)) if device.kind == "cuda" else 1
    with freed(device) as buffers:
        shared: dict[str, Any] = {}
        for name, argument in signature.items():
            if not isinstance(argument, Array):
                shared[name] = float(sample[name])
            elif not name.startswith("w"):
                shared[name] = GpuBuffer.from_numpy(device, np.ascontiguousarray(sample[name]).reshape(argument.shape))
                buffers.append(shared[name])
        found = []
        for _ in range(copies):
            own = {}
            for name, argument in signature.items():
                if isinstance(argument, Array) and name.startswith("w"):
                    own[name] = GpuBuffer.from_numpy(device, sample[name])
                    buffers.append(own[name])
            found.append(shared | own)
        yield found


def times(
    launcher: Launcher, kernel: PersistentLayer, given: Sequence[Mapping[str, Any]], runs: int, *, dependent: bool
) -> list[float]:
    """Seconds of a launch, for each run."""
    prepare = launcher.prepare_dependent if dependent else launcher.prepare
    plans: list[Plan] = [prepare(kernel, **arguments) for arguments in given]
    if launcher.device.kind == "cuda":
        plans *= -(-LEAST_LAUNCHES // len(plans))
    return chain_seconds(launcher.device, plans, runs)


@click.command()
@click.option("--shape", default="8b", type=click.Choice(list(SHAPES)), help="Whose layer.")
@click.option("--formats", default="Q4_K,Q6_K", help="That of most matrices, and of attn_v and ffn_down.")
@click.option("--digits", default="3,1", help="Int8 planes of activations, by commas.")
@click.option("--runs", default=5, help="Replays of a chain.")
@click.option("--device", "where", default="cuda:0")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="A JSON file for the results.")
def main(
    shape: str, formats: str, digits: str, runs: int, where: str, commit: str | None, output: Path | None
) -> None:  # fmt: skip
    """Time all settings, print a line for each and write JSON."""
    results = []
    with open_device(where) as device:
        launcher, grid = (
            Launcher(device, Modules(device)),
            PersistentGrid.of(device.target, GpuModel.of(device).multiprocessors),
        )
        main_format, finer = formats.split(",")
        for count in digits.split(","):
            kernel = layer(SHAPES[shape], main_format, finer, int(count))
            with layers(device, kernel) as given:
                for made in settings(kernel, grid):
                    for dependent in (False, True) if device.target.sm >= 90 else (False,):
                        seconds = times(launcher, made, given, runs, dependent=dependent)
                        results.append(_record(made, seconds, dependent=dependent))
                        click.echo(f"{results[-1]['microseconds']['median']:9.2f} us  dependent={dependent}  {made}")
        record = {
            "what": "persistent_layer on fresh weights, launches as one graph",
            "unit": "microseconds a launch: median, least and most of the replays",
            "runs": runs,
            "results": results,
        }
        if output is not None:
            write(output, record, device.describe(), commit)


def _record(kernel: PersistentLayer, seconds: list[float], *, dependent: bool) -> dict[str, Any]:
    median, least, most = (round(value * 1e6, 3) for value in (statistics.median(seconds), min(seconds), max(seconds)))
    return {
        "kernel": kernel.name,
        "parameters": dict(kernel.parameters()),
        "dependent": dependent,
        "bytes": kernel.work().bytes,
        "microseconds": {"median": median, "min": least, "max": most},
    }


if __name__ == "__main__":
    main()
