"""`ptxrun explain`: which kernel multiplies each matrix of a model, and why."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from executor.commands.session import AskedModel, device_option, devices_option, model_argument, precision_option
from ptxgen.commands import console
from ptxgen.commands.options import json_option
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.model.explain import Explained


@click.command("explain")
@model_argument
@device_option
@devices_option
@precision_option
@json_option()
def explain_command(
    asked: AskedModel, device: str, devices: Sequence[str] | None, precision: str | None, as_json: bool
) -> None:  # fmt: skip
    """Show which kernel multiplies each matrix of a model on this device, and why: what the user named, what was measured on
    this GPU (`ptxrun tune`, or the tables that are shipped), or what every device uses; how the tokens of a prompt attend; and
    of several devices by what they gather. Times are those of the tables; nothing is timed now. The error is that of a dot
    product, root mean square, relative to its own, in the worst situation tried.

    \b
    Example:
      ptxrun explain model.gguf --precision fast
    """
    from executor.choice.choice import GpuProfile
    from executor.choice.persistent import choose_persistent
    from executor.device import open_device, open_devices
    from executor.device.gpu import GpuModel
    from executor.gguf.gguf_file import GgufFile
    from executor.model.config import ModelConfig
    from executor.model.explain import explain, kept_from_persistent
    from executor.model.step_launches import rows_attention
    from executor.model.token_launches import token_attention

    if devices is not None and device != "auto":
        raise ArgumentError(f"--device names {device}, and --devices {', '.join(devices)}; leave one of the two out")
    with open_device(device) if devices is None else open_devices(devices) as opened:
        profile, target = GpuProfile.for_device(opened), opened.target
        name, reason = opened.name, opened.reason
        gathers = str(opened.gathers) if opened.ranks > 1 else None
        grid = None if gathers else choose_persistent(profile, target, GpuModel.of(opened).multiprocessors)
    if precision is not None:
        profile = replace(profile, precision=precision)
    with GgufFile.open(asked.path) as file:
        rows = explain(file, profile)
        config = ModelConfig.from_gguf(file)
    others = kept_from_persistent(rows)
    attention, alone = rows_attention(config, profile, target, "f32"), token_attention(config, profile, target)
    if as_json:
        facts = {"model": str(asked.path), "device": {"name": name, "reason": reason}, "precision": profile.precision}
        console.print_json(
            facts
            | {"tables": [table.source for table in profile.tables], "matrices": [row.facts() for row in rows]}
            | {"attention": attention.facts(), "attention_of_one": alone.facts()}
            | {"gathers": gathers}
            | {"persistent_layers": None if grid is None else {"blocks": grid.blocks, "kept_from_it_by": others}}
        )
        return
    _print(rows)
    console.echo()
    _wrap(f"attention of the token that generate decodes: {alone}")
    _wrap(f"attention of several rows: {attention}")
    if gathers is not None:
        _wrap(f"gathers: {gathers}")
    if grid is None:
        _wrap("from one attention to the next, of a token alone: a launch for each operation")
    else:
        apart = f", but a launch for each operation in layers with these kernels of {', '.join(others)}" if others else ""
        _wrap(f"from one attention to the next, of a token alone: {grid}{apart}")


def _print(rows: list[Explained]) -> None:
    reasons = list(dict.fromkeys(row.choice.reason for row in rows))
    cells = []
    for row in rows:
        m, entry = row.matrix, row.choice.entry
        parameters = " ".join(f"{name}={value}" for name, value in row.unusual.items())
        time = "" if entry is None or entry.seconds is None else f"{entry.seconds * 1e6:.2f}"
        tensors = ", ".join(role if count == 1 else f"{count} x {role}" for role, count in m.roles)
        why = str(reasons.index(row.choice.reason) + 1)
        error = console.magnitude(row.error)
        cells.append((tensors, m.format.name, f"{m.k} x {m.n}", f"{row.choice.kernel.name} {parameters}", time, error, why))
    columns = ("tensors", "type", "K x N", "kernel", "us", "error", "why")
    console.print_table(columns, cells, numeric=("us", "error", "why"), bold="kernel")
    console.echo()
    for number, reason in enumerate(reasons, 1):
        _wrap(f"{number}  {reason}")


def _wrap(sentence: str) -> None:
    console.echo(textwrap.fill(sentence, console.WIDTH, subsequent_indent="   "))
