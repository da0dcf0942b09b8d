"""`ptxrun explain`: what a step of a model launches, which kernel was chosen for each matrix, and why."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import click

from executor.commands.session import (
    AskedModel,
    device_option,
    devices_option,
    kv_type_option,
    model_argument,
    precision_option,
)
from ptxgen.commands import console
from ptxgen.commands.options import gpu_option, json_option
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.launch.recorded import FoldedLayers
    from executor.model.explain import Explained


LAYERS: Final = 12
"""Columns of the numbers of layers, which go on in the lines below."""


@click.command("explain")
@model_argument
@device_option
@devices_option
@gpu_option("Instead of a device: l4, rtx4090, ..., which need not be there.")
@precision_option
@click.option(
    "--sequences",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show a step in which N sequences decode a token each, as in `ptxrun serve` (default: a token of `generate`).",
)
@click.option(
    "--prompt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the first step of a prompt of N tokens, which reads most of them.",
)
@kv_type_option
@json_option()
def explain_command(
    asked: AskedModel,
    device: str,
    devices: Sequence[str] | None,
    gpu_name: str | None,
    precision: str | None,
    sequences: int | None,
    prompt: int | None,
    kv_type: str,
    as_json: bool,
) -> None:
    """Show what a step of a model launches on this device: kernels with their parameters, in order, layers that launch the same
    as one. The step is recorded by the code that runs it; nothing runs. Then, for each matrix, which kernel was chosen before
    neighbouring operations are fused with it, and why: what the user named, what was measured on this GPU (`ptxrun tune`, or
    the tables that are shipped), or what every device uses. Times are those of the tables; nothing is timed now. The error is
    that of a dot product, root mean square, relative to its own, in the worst situation tried. With --precision fast, what
    reads an input with an outlier gets an accurate kernel, which only running the model shows.

    \b
    Examples:
      ptxrun explain model.gguf --precision fast
      ptxrun explain model.gguf --sequences 8
    """
    from executor.base.rules import RULES
    from executor.choice.choice import GpuProfile
    from executor.choice.persistent import choose_persistent
    from executor.device import open_device, open_devices
    from executor.device.dry_run import DryRunDevice
    from executor.gguf.gguf_file import GgufFile
    from executor.launch.recorded import folded
    from executor.model.context import chosen_context
    from executor.model.expected_speed import named_gpu
    from executor.model.explain import explain, kept_from_persistent
    from executor.model.model_file import read_spec
    from executor.model.recorded_step import DryModel
    from executor.model.step_launches import rows_attention
    from executor.model.token_launches import token_attention

    if devices is not None and device != "auto":
        raise ArgumentError(f"--device names {device}, and --devices {', '.join(devices)}; leave one of the two out")
    if gpu_name is not None and (device != "auto" or devices is not None):
        raise ArgumentError(f"--gpu {gpu_name} is in the place of --device and --devices; leave one of them out")
    if sequences is not None and prompt is not None:
        raise ArgumentError("--sequences and --prompt are of two kinds of steps; leave one of the two out")
    if kv_type != "f32" and sequences is None:
        raise ArgumentError("--kv-type is of --sequences: a sequence alone and its prompt have f32")
    if gpu_name is not None:
        dry = DryRunDevice.of(named_gpu(gpu_name))
        name, reason = dry.card.title, "asked for; it need not be there"
    else:
        with open_device(device) if devices is None else open_devices(devices) as opened:
            dry, name, reason = DryRunDevice.like(opened), opened.name, opened.reason
    profile = GpuProfile.for_device(dry.as_device)
    gathers = str(dry.gathers) if dry.ranks > 1 else None
    grid = None if gathers else choose_persistent(profile, dry.target, dry.gpu.multiprocessors)
    if precision is not None:
        profile = replace(profile, precision=precision)
    with GgufFile.open(asked.path) as file:
        rows = explain(file, profile)
        spec = read_spec(file)
        model = DryModel(file, spec, chosen_context(spec, None), dry, profile)
        if sequences is not None:
            step, launches = console.counted(sequences, "sequence"), model.sequences(sequences, kv_type)
        elif prompt is not None:
            step, launches = f"the first step of a prompt of {console.counted(prompt, 'token')}", model.prompt(prompt)
        else:
            step, launches = "a token of generate", model.token()
    others = kept_from_persistent(rows)
    attention, alone = rows_attention(spec, profile, dry.target, kv_type), token_attention(spec, profile)
    lacking = [lacks for rule in RULES.values() if rule.name not in profile.rules and (lacks := rule.usually_lacks(dry.target))]
    if as_json:
        facts = {"model": str(asked.path), "device": {"name": name, "reason": reason}, "precision": profile.precision}
        console.print_json(
            facts
            | {"tables": [table.source for table in profile.tables], "matrices": [row.facts() for row in rows]}
            | {"attention": attention.facts(), "attention_of_one": alone.facts()}
            | {"gathers": gathers, "lacking": lacking}
            | {"persistent_layers": None if grid is None else {"blocks": grid.blocks, "kept_from_it_by": others}}
            | {"step": step, "launches": [launch.facts() for launch in launches]}
        )
        return
    console.echo(f"{step}: {len(launches)} launches")
    _print_launches(folded(launches))
    console.echo()
    console.echo("the kernel chosen for each matrix, before neighbouring operations are fused:")
    _print_choices(rows)
    console.echo()
    _wrap(f"attention of the token that generate decodes: {alone}")
    _wrap(f"attention of several rows: {attention}")
    for lacks in lacking:
        _wrap(f"off: {lacks}")
    if gathers is not None:
        _wrap(f"gathers: {gathers}")
    if grid is not None:
        apart = f", but not in layers with these kernels of {', '.join(others)}" if others else ""
        _wrap(f"from one attention to the next, of a token alone: {grid}{apart}")


def _print_launches(groups: Sequence[FoldedLayers]) -> None:
    cells = []
    for group in groups:
        numbers = textwrap.wrap(group.numbers, LAYERS)
        for launch, layers in zip_longest(group.launches, numbers, fillvalue=None):
            if launch is None:
                cells.append((layers or "", "", "", "", ""))
                continue
            parameters = " ".join(f"{name}={value}" for name, value in launch.parameters.items())
            times = str(launch.launches) if launch.launches > 1 else ""
            dependent = "yes" if launch.dependent else ""
            cells.append((layers or "", launch.operation, f"{launch.kernel.name} {parameters}", times, dependent))
    console.print_table(("layers", "operation", "kernel", "times", "PDL"), cells, numeric=("times",), bold="kernel")


def _print_choices(rows: list[Explained]) -> None:
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
