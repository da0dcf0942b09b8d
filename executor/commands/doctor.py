"""`ptxrun doctor`: what this machine runs models on, how kernels are chosen, and what would help."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from executor.commands.session import device_option
from ptxgen.commands import console
from ptxgen.commands.options import json_option

if TYPE_CHECKING:
    from executor.model.doctor import Diagnosis, TableFacts


@click.command("doctor")
@device_option
@json_option()
def doctor_command(device: str, as_json: bool) -> None:
    """Show driver and GPUs, the device that a model would run on and the target of its kernels, which rules are on and why,
    what was measured and when, and what loading a model would do first; then what would help, a line each. Nothing is measured.

    \b
    Example:
      ptxrun doctor
    """
    from executor.device import open_device
    from executor.model.doctor import diagnose

    with open_device(device) as opened:
        found = diagnose(opened)
    if as_json:
        console.print_json(found.facts())
    else:
        _print(found)


def _print(found: Diagnosis) -> None:
    device = found.device
    console.echo(f"ptxgen {found.version}, {console.counted(len(found.gpus), 'GPU')}")
    if found.gpus:
        rows = [
            (gpu["name"], gpu["target"], str(gpu["multiprocessors"]), str(gpu["memory_gb"]), str(gpu["l2_bytes"] >> 20))
            for gpu in found.gpus
        ]
        columns = ("GPU", "target", "multiprocessors", "GB", "L2 MiB")
        console.print_table(columns, rows, numeric=columns[2:])
    console.echo()
    _wrap(f"device: {device['name']}, kernels for {device['target']}, {found.precision}")
    if found.limits is not None:
        _wrap(f"limits: those of a {found.limits} (PTXGEN_DEVICE_LIMITS)")
    _wrap(f"memory: {found.free_bytes / 1e9:.1f} of {device['memory_bytes'] / 1e9:.1f} GB free")
    console.echo()
    rules = [(rule.name, "on" if rule.on else "off", rule.why) for rule in found.rules]
    console.print_table(("rule", "", "why"), rows=rules)
    console.echo()
    if found.measured:
        measured = [
            (table.gpu, "shipped" if table.shipped else table.source, str(table.entries), _days(table))
            for table in found.measured
        ]
        console.print_table(("measured on", "table", "entries", "when"), measured, numeric=("entries",))
        console.echo()
    console.echo("a first load")
    for line in found.first_load:
        _wrap(f"- {line}")
    console.echo()
    for line in found.suggestions:
        _wrap(f"> {line}")


def _days(table: TableFacts) -> str:
    return table.first if table.first == table.last else f"{table.first} to {table.last}"


def _wrap(sentence: str) -> None:
    console.echo(
        textwrap.fill(sentence, console.WIDTH, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)
    )
