"""How long a token's choice takes: argmax, and sample_token by its filters, over random logits of one row, or of many.

python -m benchmarks.sample_token --vocab 128256,151936 --rows 1,8,64 -o benchmarks/results/sample-token-h200.json
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.record import write
from executor.device import open_device
from executor.device.protocol import Device
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.measure.timing import chain_seconds
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from ptxgen.commands.options import whole_numbers
from ptxgen.kernels.registry import find
from ptxgen.kernels.token.sampling import settings

ALL: Final = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DRAWS: Final[Mapping[str, Mapping[str, float]]] = {
    "temperature 0.8": {},
    "and top-k 40": {"top_k": 40},
    "and top-p 0.95": {"top_p": 0.95},
    "and min-p 0.05": {"min_p": 0.05},
    "all of them": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
}
SPREAD: Final = 3.0
"""Standard deviation of the logits."""
LAUNCHES: Final = 16


@click.command()
@click.option("--vocab", default="128256,151936", show_default=True, metavar="N,...", help="Logits.")
@click.option("--rows", "counts", default="1", show_default=True, metavar="N,...", help="Rows that are chosen for at once.")
@click.option("--runs", default=9, type=click.IntRange(1), show_default=True)
@click.option("--device", default="cuda:0", show_default=True)
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(vocab: str, counts: str, runs: int, device: str, commit: str | None, output: Path) -> None:
    """Time the kernels and write the result as JSON."""
    sizes = whole_numbers("--vocab", vocab, "numbers of logits", "128256", low=1)
    rows = whole_numbers("--rows", counts, "numbers of rows", "1,64", low=1)
    with open_device(device) as opened:
        results = [one for m in rows for n in sizes for one in timed(opened, n, runs, m)]
        record = {
            "what": f"sample_token by its filters, and argmax, over normally distributed logits, standard deviation {SPREAD:g}",
            "unit": f"us a launch, the median of {runs} graphs of {LAUNCHES}",
            "results": results,
        }
        write(output, record, opened.describe(), commit)
    for one in results:
        click.echo(f"{one['rows']} x {one['n']} {one['draws']}: {one['us']} us")


def timed(device: Device, n: int, runs: int, rows: int = 1) -> Iterator[dict[str, Any]]:
    """argmax, then each of DRAWS, for each row: by the kernels of one row, or by those of several."""
    batched, several, shape = ("", {}, ()) if rows == 1 else ("batched_", {"m": rows}, (rows,))
    launcher = Launcher(device, Modules(device))
    x = GpuBuffer.from_numpy(device, np.random.default_rng(n).normal(0, SPREAD, (*shape, n)).astype(np.float32))
    out = GpuBuffer.from_numpy(device, np.zeros(rows, np.uint32))
    random = GpuBuffer.from_numpy(device, np.full((*shape, 2), (7, 0), np.uint64))

    def row(draws: str, plan: Plan) -> dict[str, Any]:
        seconds = statistics.median(chain_seconds(device, [plan] * LAUNCHES, runs))
        return {"n": n, "rows": rows, "draws": draws, "us": round(seconds * 1e6, 2)}

    likeliest = find(f"{batched}argmax").make(n=n, **several)
    scratch = Workspace(device).arrays(likeliest, "argmax", likeliest.scratch)
    yield row("argmax", launcher.prepare(likeliest, out=out, x=x, **scratch))
    kernel = find(f"{batched}sample_token").make(n=n, **several)
    for draws, filters in DRAWS.items():
        chosen = settings(**{**ALL, **filters})  # type: ignore[arg-type]
        set_to = GpuBuffer.from_numpy(device, np.full((*shape, len(chosen)), chosen))
        yield row(draws, launcher.prepare(kernel, out=out, x=x, settings=set_to, random=random))


if __name__ == "__main__":
    main()
