"""`ptxrun tune`: measures the kernels that fit a model's matrices on this GPU, and keeps the results."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from executor.commands.session import device_option, model_argument, precision_option
from ptxgen.commands import console
from ptxgen.commands.options import FILE, json_option
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.choice.table import TuningEntry
    from executor.tune.tune import Shape, Tuned


def _rows(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() and int(number) for number in numbers):
        raise ArgumentError(f"--rows is {text!r}; allowed: whole numbers of at least 1, as 1,8,64")
    return sorted({int(number) for number in numbers})


@click.command("tune")
@model_argument
@device_option
@precision_option
@click.option(
    "--kernels", "pattern", default="*", metavar="PATTERN", help="Only kernels with such names: 'hw_dp4a_*' (default: all)."
)
@click.option(
    "--rows", default="1", show_default=True, metavar="LIST", callback=_rows, help="Rows of activations: '1,2,4,8,64'."
)
@click.option("--runs", type=click.IntRange(min=1), default=9, show_default=True, help="Timed runs; their median counts.")
@click.option("--again", is_flag=True, help="Also measure what the table already has from the same versions.")
@click.option("-o", "--output", metavar="FILE", type=FILE, help="The table (default: PTXGEN_TUNING).")
@json_option("The winners, and what was left out, as JSON.")
def tune_command(
    path: Path, device: str, precision: str | None, pattern: str, rows: list[int], runs: int, again: bool,
    output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure every kernel that can multiply a matrix of this model by a vector, or by as many as --rows says, on weights that
    no cache holds, and keep times and errors in a table. From then on the fastest whose error the precision allows is used on
    this GPU, so that the last bits of a model's results may differ from those on other machines; without the table they are the
    same everywhere.

    Each result is saved at once: a run that was interrupted goes on where it stopped.

    \b
    Examples:
      ptxrun tune model.gguf
      ptxrun tune model.gguf --precision fast --kernels 'hw_dp4a_*' -o table.json
      ptxrun tune model.gguf --rows 2,4,8,16,64,512
    """
    from executor.base.environment import settings
    from executor.choice.choice import GpuProfile
    from executor.choice.store import own_path
    from executor.device import open_device
    from executor.device.gpu import GpuModel
    from executor.gguf.gguf_file import GgufFile
    from executor.measure.bandwidth import bandwidth
    from executor.model.matrices import matrices
    from executor.tune.tune import tune, winners

    environment = settings()
    profile = GpuProfile.from_environment()
    precision = precision or profile.precision
    with GgufFile.open(path) as file:
        shapes = [(profile.at_load(matrix.format), matrix.k, matrix.n) for matrix in matrices(file)]
    with open_device(device) as opened, console.progress() as report:
        target = output or own_path(GpuModel.of(opened), environment)
        if target is None:
            raise ArgumentError("there is no cache folder to keep the table in (PTXGEN_CACHE_DIR is off); name a file with -o")
        if opened.kind != "cuda" and not as_json:
            console.echo("these are times of the emulator on this CPU; they say nothing about a GPU", err=True)
        tuned = tune(
            opened, shapes, precision, target, rows=rows, pattern=pattern, again=again, runs=runs,
            progress=partial(report, "kernels"),
        )  # fmt: skip
        limit = bandwidth(opened) if opened.kind == "cuda" else None
        name = opened.name
    fastest = winners(tuned.table, shapes, precision, rows)
    if as_json:
        console.print_json({"table": str(target), "device": name, "precision": precision} | _facts(tuned, fastest))
        return
    _print(fastest, limit)
    for kernel, reason in tuned.left_out:
        console.echo(f"left out: {kernel}: {reason}", err=True)
    console.echo(
        f"{tuned.measured} measured, {tuned.known} already in the table, {len(tuned.left_out)} left out: {target}", err=True
    )


def _facts(tuned: Tuned, fastest: list[tuple[Shape, TuningEntry]]) -> dict[str, Any]:
    return {
        "measured": tuned.measured,
        "known": tuned.known,
        "left_out": [{"kernel": kernel, "reason": reason} for kernel, reason in tuned.left_out],
        "winners": [asdict(replace(entry, parameters=dict(entry.parameters))) for _, entry in fastest],
    }


def _print(fastest: list[tuple[Shape, TuningEntry]], limit: float | None) -> None:
    """limit: bytes a second that the GPU reads, None for the emulator."""
    rows = []
    for (format, k, n), entry in fastest:
        assert entry.seconds is not None
        assert entry.error is not None
        rate = n * format.row_bytes(k) / entry.seconds
        parameters = " ".join(f"{name}={value}" for name, value in entry.parameters.items())
        speed = () if limit is None else (f"{rate / 1e9:.0f}", f"{rate / limit:.0%}")
        time, error = f"{entry.seconds * 1e6:.2f}", console.magnitude(entry.error)
        rows.append((format.name, f"{k} x {n}", str(entry.rows), f"{entry.kernel} {parameters}", time, *speed, error))
    columns = ("type", "K x N", "rows", "fastest kernel", "us", *(() if limit is None else ("GB/s", "of limit")), "error")
    console.print_table(columns, rows, numeric=("rows", *columns[4:]), bold="us")
