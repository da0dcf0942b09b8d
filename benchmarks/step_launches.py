"""When the launches of a step of one row start, begin and end, by the stamps of the kernels themselves.

python -m benchmarks.step_launches --file model.gguf --variant repack -o benchmarks/results/step-launches-h200.json

A launch begins when it has waited for the one before it. Times are medians over steps, means over the layers of an operation,
in us after the end of whatever had ended before.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.decode_switches import AS_IT_COMES, CONTEXT, switched
from benchmarks.record import write
from executor.choice.choice import GpuProfile
from executor.device import open_devices
from executor.device.protocol import Device
from executor.measure.profiler import TileProfiler
from executor.model.generation import LanguageModel

WARM_UPS: Final = 8
US: Final = 1e-3
"""Microseconds of a nanosecond, which is what stamps are in."""


@click.command()
@click.option("--file", "path", required=True, type=click.Path(path_type=Path, exists=True), help="A GGUF model.")
@click.option("--variant", default=AS_IT_COMES, show_default=True, help="As of benchmarks.decode_switches.")
@click.option("--steps", default=16, type=click.IntRange(1), show_default=True, help=f"After {WARM_UPS} that warm up.")
@click.option("--device", default="cuda:0", show_default=True, metavar="NAME,...", help="Several share the model.")
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(path: Path, variant: str, steps: int, device: str, commit: str | None, output: Path) -> None:
    """Stamp the launches of some steps and write the result as JSON."""
    with open_devices(device.split(",")) as opened:
        results = launches(path, opened, variant, steps)
        record = {
            "what": "launches of a step of one row by their stamps",
            "unit": "us after the end of whatever had ended before; lasts: from begins to ends",
            "model": path.name,
            "variant": variant,
            "steps": steps,
            "results": results,
        }
        write(output, record, opened.describe(), commit)
    for one in results:
        click.echo(f"{one['operation']:14} {one['kernel']:38} {one['launches']:3} {one['ends']:7.2f} {one['lasts']:7.2f}")


def launches(path: Path, device: Device, variant: str, steps: int) -> list[dict[str, Any]]:
    """A row for each kernel of each operation, in the order of the step."""
    profile = switched(GpuProfile.for_device(device), variant)
    with LanguageModel.load(path, device, context=CONTEXT, profile=profile) as model:
        decoder = model.decoder
        decoder.profiler = TileProfiler(device)
        decoder.reset()
        decoder.step(1)
        moments = []
        for _ in range(WARM_UPS + steps):
            decoder.step()
            moments.append(decoder.graph().moments())
        records = decoder.graph().records
    stamps = np.array(moments[WARM_UPS:], dtype=np.float64)  # [steps, launches, (start, began, end)]
    stamps = np.median(stamps - stamps[:, :1, :1], axis=0) * US
    ended = np.concatenate([[0.0], np.maximum.accumulate(stamps[:-1, 2])])
    rows: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for record, (start, began, end), before in zip(records, stamps, ended, strict=True):
        rows[record.place.operation, record.kernel.name].append((start - before, began - before, end - before, end - began))
    return [
        {"operation": operation, "kernel": kernel, "launches": len(found), "step_us": round(float(stamps[:, 2].max()), 1)}
        | dict(zip(("starts", "begins", "ends", "lasts"), np.mean(found, axis=0).round(2).tolist(), strict=True))
        for (operation, kernel), found in rows.items()
    ]


if __name__ == "__main__":
    main()
