"""`ptxrun tune`: measures the kernels that fit a model's matrices on this GPU, and keeps those that make its steps faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from executor.commands.session import AskedModel, device_option, model_argument, precision_option
from ptxgen.commands import console
from ptxgen.commands.completion import complete_kernels
from ptxgen.commands.options import FILE, json_option
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.choice.choice import GpuProfile
    from executor.choice.table import TuningEntry, TuningTable
    from executor.device.protocol import Device
    from executor.tune.keep import Dropped, Kept, Proposal, StepFigures
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
    "--kernels",
    "pattern",
    default="*",
    metavar="PATTERN",
    help="Only kernels with such names: 'hw_dp4a_*' (default: all).",
    shell_complete=complete_kernels,
)
@click.option(
    "--rows", default="1", show_default=True, metavar="LIST", callback=_rows, help="Rows of activations: '1,2,4,8,64'."
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=9,
    show_default=True,
    help="Timed runs of a kernel, and rounds of steps, at least 5; their median counts.",
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    metavar="N",
    default=8,
    show_default=True,
    help="Kernels for a matrix that are tried in steps, the fastest alone first.",
)
@click.option("--again", is_flag=True, help="Also measure what was measured with the same versions.")
@click.option("-o", "--output", metavar="FILE", type=FILE, help="The table (default: PTXGEN_TUNING).")
@json_option("The winners, what was left out, and steps with and without them, as JSON.")
def tune_command(
    asked: AskedModel,
    device: str,
    precision: str | None,
    pattern: str,
    rows: list[int],
    runs: int,
    tries: int,
    again: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure every kernel that can multiply a matrix of this model by a vector, or by as many as --rows says, on weights that
    no cache holds. Then time whole steps of the model with the kernels that it has and with the fastest alone, in turns, and
    keep in a table those that make the steps faster by more than the noise: a kernel alone is not a kernel in a step. From then
    on they are used on this GPU, so that the last bits of a model's results may differ from those on other machines; without
    the table they are the same everywhere.

    What is measured of kernels is saved at once, beside the table: a run that was interrupted goes on where it stopped. The
    table stays as it is until the end.

    \b
    Examples:
      ptxrun tune model.gguf
      ptxrun tune model.gguf --precision fast --kernels 'hw_dp4a_*' -o table.json
      ptxrun tune model.gguf --rows 2,4,8,16,64,512
    """
    from executor.base.environment import settings
    from executor.choice.choice import GpuProfile
    from executor.choice.store import measured_path, own_path, own_table, save
    from executor.device import open_device
    from executor.device.gpu import GpuModel
    from executor.gguf.gguf_file import GgufFile
    from executor.measure.bandwidth import bandwidth
    from executor.model.matrices import matrices
    from executor.model.row_steps import MOST_ROWS
    from executor.tune.tune import tune, winners

    environment = settings()
    if environment.debug:
        raise ArgumentError("the debug mode (GPU_DEBUG) waits for every launch, so times would mean nothing; switch it off")
    if rows[-1] > MOST_ROWS:
        raise ArgumentError(f"--rows has {rows[-1]}; a step has at most {MOST_ROWS}")
    with open_device(device) as opened, console.progress() as report:
        gpu = GpuModel.of(opened)
        target = output or own_path(gpu, environment)
        if target is None:
            raise ArgumentError("there is no cache folder to keep the table in (PTXGEN_CACHE_DIR is off); name a file with -o")
        if opened.kind != "cuda" and not as_json:
            console.echo("these are times of the emulator on this CPU; they say nothing about a GPU", err=True)
        before = own_table(target, gpu, environment)
        profile = GpuProfile.for_device(opened, before)
        profile = replace(profile, precision=precision or profile.precision)
        with GgufFile.open(asked.path) as file:
            shapes = [(profile.at_load(matrix.format, matrix.k), matrix.k, matrix.n) for matrix in matrices(file)]
        tuned = tune(
            opened, shapes, profile.precision, measured_path(target), rows=rows, pattern=pattern, again=again, runs=runs,
            progress=partial(report, "kernels"),
        )  # fmt: skip
        kept = _kept(opened, asked.path, profile, shapes, rows, runs, tries, before, tuned, report)
        limit = bandwidth(opened) if opened.kind == "cuda" else None
        name = opened.name
    written = kept.table != before
    if written:
        save(target, kept.table)
    fastest = winners(tuned.table, shapes, profile.precision, rows)
    if as_json:
        facts = {"table": str(target), "written": written, "device": name, "precision": profile.precision}
        console.print_json(facts | _facts(tuned, fastest, kept))
        return
    _print(fastest, limit)
    _print_steps(kept)
    for kernel, reason in tuned.left_out:
        console.echo(f"left out: {kernel}: {reason}", err=True)
    console.echo(
        f"{tuned.measured} measured, {tuned.known} already known, {len(tuned.left_out)} left out: {measured_path(target)}",
        err=True,
    )
    console.echo(_outcome(kept, target, written=written), err=True)


def _kept(
    device: Device,
    path: Path,
    profile: GpuProfile,
    shapes: Sequence[Shape],
    rows: Sequence[int],
    runs: int,
    tries: int,
    before: TuningTable,
    tuned: Tuned,
    report: console.Report,
) -> Kept:
    """What of the measurements makes steps faster; the model is only loaded if anything could."""
    from executor.gguf.gguf_file import GgufFile
    from executor.model.generation import LanguageModel
    from executor.model.model_file import read_spec
    from executor.model.step_times import context_for, step_times
    from executor.tune.keep import LEAST_ROUNDS, Kept, StepTest, keep, others, proposals

    shipped = [table for table in profile.tables if table.shipped]

    def with_own(table: TuningTable) -> GpuProfile:
        return replace(profile, tables=(table.running_on(device.target), *shipped))

    def times(number: int, profiles: Sequence[GpuProfile]) -> Sequence[Sequence[float]]:
        return step_times(model.decoder, number, profiles, max(runs, LEAST_ROUNDS))

    test = StepTest(shapes, rows, with_own, times)
    proposed = proposals(before, tuned.table, profile.precision, test)
    more = others(before, proposed, tuned.table, profile.precision, test, tries)
    if not proposed and not more:
        return Kept(before)
    with GgufFile.open(path) as file:
        context = context_for(read_spec(file), rows)
    with LanguageModel.load(
        path,
        device,
        context=context,
        profile=with_own(before),
        progress=lambda stage, done, total: report(f"model: {stage}", done, total),
    ) as model:
        return keep(before, proposed, test, partial(report, "steps"), others=more)


def _facts(tuned: Tuned, fastest: list[tuple[Shape, TuningEntry]], kept: Kept) -> dict[str, Any]:
    return {
        "measured": tuned.measured,
        "known": tuned.known,
        "left_out": [{"kernel": kernel, "reason": reason} for kernel, reason in tuned.left_out],
        "winners": [_entry_facts(entry) for _, entry in fastest],
        "steps": [_step_facts(one) for one in kept.steps],
        "taken": [_proposal_facts(one) for one in kept.taken],
        "dropped": [_proposal_facts(one.proposal) | _why(one) for one in kept.dropped],
        "tried": kept.tried,
    }


def _entry_facts(entry: TuningEntry) -> dict[str, Any]:
    return asdict(replace(entry, parameters=dict(entry.parameters)))


def _proposal_facts(one: Proposal) -> dict[str, Any]:
    """entry: None stands for what is used without any."""
    format, k, n = one.shape
    entry = None if one.entry is None else _entry_facts(one.entry)
    return {"format": format.id, "k": k, "n": n, "rows": one.rows, "entry": entry}


def _why(one: Dropped) -> dict[str, Any]:
    return {"reason": one.reason, "gains": [asdict(gain) for gain in one.gains]}


def _step_facts(one: StepFigures) -> dict[str, Any]:
    return {
        "rows": one.rows,
        "seconds_before": one.before,
        "seconds_with_all": one.everything,
        "seconds_with_kept": one.kept,
        "noise_seconds": one.noise,
    }


def _print(fastest: list[tuple[Shape, TuningEntry]], limit: float | None) -> None:
    """limit: bytes a second that the GPU reads, None for the emulator."""
    rows = []
    for (format, k, n), entry in fastest:
        assert entry.seconds is not None
        assert entry.error is not None
        rate = n * format.row_bytes(k) / entry.seconds
        parameters = " ".join(_settings(entry))
        speed = () if limit is None else (f"{rate / 1e9:.0f}", f"{rate / limit:.0%}")
        time, error = f"{entry.seconds * 1e6:.2f}", console.magnitude(entry.error)
        rows.append((format.name, f"{k} x {n}", str(entry.rows), f"{entry.kernel} {parameters}", time, *speed, error))
    columns = ("type", "K x N", "rows", "fastest kernel alone", "us", *(() if limit is None else ("GB/s", "of limit")), "error")
    console.print_table(columns, rows, numeric=("rows", *columns[4:]), bold="us")


def _print_steps(kept: Kept) -> None:
    """Steps before and after, if any were timed, and what became of each proposal."""
    if kept.steps:
        cells = [
            (str(one.rows), *(f"{seconds * 1e6:.2f}" for seconds in (one.before, one.everything, one.kept, one.noise)))
            for one in kept.steps
        ]
        columns = ("rows of a step", "us before", "us with all", "us with what is kept", "noise")
        console.echo()
        console.print_table(columns, cells, numeric=columns, bold="us with what is kept")
    for one in kept.taken:
        console.echo(f"taken: {_named(one)}", err=True)
    for dropped in kept.dropped:
        console.echo(f"dropped: {_named(dropped.proposal)}: {dropped.reason}", err=True)


def _named(one: Proposal) -> str:
    format, k, n = one.shape
    kernel = "no entry" if one.entry is None else " ".join([one.entry.kernel, *_settings(one.entry)])
    return f"{format.name} {k} x {n}, {console.counted(one.rows, 'row')}: {kernel}"


def _settings(entry: TuningEntry) -> list[str]:
    return [f"{name}={value}" for name, value in entry.parameters.items()]


def _outcome(kept: Kept, target: Path, *, written: bool) -> str:
    if written:
        return f"{len(kept.taken)} taken, {len(kept.dropped)} dropped, {kept.tried} more tried: {target}"
    tried = f"none of {len(kept.dropped)} makes a step faster" if kept.dropped else "nothing faster than what is used anyway"
    return f"{tried}; the table stays as it is: {target}" if target.exists() else f"{tried}; no table is written"
