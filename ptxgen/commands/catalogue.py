"""`ptxgen list`, `ptxgen emit` and `ptxgen check`: the catalogue as a table, as PTX, and as what the assembler says of it."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, asdict, dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxgen.commands import console
from ptxgen.commands.completion import complete_kernels, complete_settings, complete_targets
from ptxgen.commands.options import FILE, TARGETS, gpu_option, json_option, parse_target, set_option, target_option
from ptxgen.commands.start import FAILED
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.files import replacing
from ptxgen.printable import did_you_mean, printable
from ptxgen.target import Target

if TYPE_CHECKING:
    from ptxgen.dsl.kernel_type import KernelType
    from ptxgen.kernels.registry import KernelEntry

MANY = 1000
"""Kernels to check from which the start of more processes pays."""


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...", shell_complete=complete_kernels)
@json_option()
def list_command(patterns: tuple[str, ...], as_json: bool) -> None:
    """List the kernels whose names match one of the patterns (* stands for anything), all if there is none, with the parameters
    that their shapes take; then the entry points of other packages that do not load, with the reason.

    Where stdout is no terminal, a line is one kernel: its name, parameters and what it computes, with tabs between, and what
    does not load is said on stderr.

    \b
    Examples:
      ptxgen list
      ptxgen list 'q4k*' '*attention*'
      ptxgen list | cut -f1
    """
    from ptxgen.kernels.registry import broken, entries

    kernels = entries()
    for pattern in patterns:
        if not fnmatch.filter(kernels, pattern):
            hint = did_you_mean(pattern.strip("*"), kernels, "`ptxgen list` shows all")
            raise ArgumentError(f"no kernel has a name like {pattern!r}; {hint}")
    if patterns:
        kernels = {name: entry for name, entry in kernels.items() if any(map(partial(fnmatch.fnmatchcase, name), patterns))}
    faults = () if patterns else broken()
    if as_json:
        console.print_json([*(_listed(entry) for entry in kernels.values()), *map(asdict, faults)])
        return
    if not console.in_terminal():
        for entry in kernels.values():
            click.echo("\t".join(printable(text) for text in (entry.name, _shape(entry), entry.summary)))
        for fault in faults:
            console.echo(f"{fault.name} of {fault.package} does not load: {fault.reason}", err=True)
        return
    rows: list[tuple[str, str, str]] = []
    for family in sorted({entry.type.family for entry in kernels.values()}):
        members = [entry for entry in kernels.values() if entry.type.family == family]
        rows += [(family, "", ""), *((f"  {entry.name}", _shape(entry), entry.summary) for entry in members)]
    if faults:
        rows += [("broken", "", ""), *((f"  {fault.name}", fault.package, fault.reason) for fault in faults)]
    console.print_table(("kernel", "parameters", "what it computes"), rows)


@click.command("emit")
@click.argument("name", shell_complete=complete_kernels)
@set_option
@target_option("the oldest that the kernel is for")
@gpu_option()
@click.option("--lines", is_flag=True, help="Name the Python line of every instruction (.loc), for debuggers and sanitisers.")
@click.option("-o", "--output", type=FILE, help="Write FILE, and what a launch needs to FILE's name in .json.")
def emit_command(
    name: str, settings: tuple[str, ...], target_name: str | None, gpu_name: str | None, lines: bool, output: Path | None
) -> None:
    """Write the PTX of one kernel to stdout or to a file. No GPU is needed.

    \b
    Example:
      ptxgen emit q4k_gemv --set k=4096 --set n=4096 --target sm_90 -o gemv.ptx
    writes gemv.ptx, and gemv.json with entry, parameters, grid, block and shared memory.
    """
    from ptxgen.commands.shapes import parse_shape
    from ptxgen.kernels.registry import find
    from ptxgen.toolchain.module import emit

    target = parse_target(target_name, gpu_name)
    entry = find(name)
    if output is not None and output.suffix == ".json":
        raise ArgumentError(f"{output} would hold both the PTX and what a launch needs; name it .ptx")
    emitted = emit(entry.make(**parse_shape(entry, settings)), target, lines=lines)
    if output is None:
        click.echo(emitted.text, nl=False)
        return
    with replacing(output) as stream:
        stream.write(emitted.text.encode("ascii"))
    with replacing(output.with_suffix(".json")) as stream:
        stream.write((json.dumps(emitted.manifest(), indent=2) + "\n").encode())


@click.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_kernels)
@click.option(
    "settings",
    "--set",
    multiple=True,
    metavar="NAME=VALUE",
    help="Check this shape; otherwise all sample shapes.",
    shell_complete=complete_settings,
)
@click.option(
    "--models", is_flag=True, help="Check the shapes of known models instead (matrix-vector kernels only, your own included)."
)
@click.option(
    "target_names",
    "--target",
    multiple=True,
    shell_complete=complete_targets,
    help=f"GPU target, or `all` that a kernel is for (default: its oldest); may be repeated. Targets: {TARGETS}",
)
@gpu_option("A GPU, whose target is checked, too: l4, rtx4090, ...; may be repeated.", multiple=True)
@json_option()
@click.pass_context
def check_command(
    ctx: click.Context,
    names: tuple[str, ...],
    settings: tuple[str, ...],
    models: bool,
    target_names: tuple[str, ...],
    gpu_name: tuple[str, ...],
    as_json: bool,
) -> None:
    """Verify and assemble kernels (all, or the named ones) and report the registers, spills, shared memory and machine code
    they take.

    Exit code 1 if one of them fails: does not assemble, spills, has more than 64 KB of machine code, or more registers for a
    block than a multiprocessor has. No GPU is needed.

    \b
    Examples:
      ptxgen check --target all
      ptxgen check q4k_gemv --set k=4096 --set n=4096 --target sm_90
      ptxgen check batched_hw_dp4a_q4k_gemv --models --target sm_90 --gpu rtx4090
    """
    from ptxgen.gpus.gpu import find_gpu
    from ptxgen.kernels.registry import entries, find

    if models and settings:
        raise ArgumentError("--models and --set both say which shapes to check; give one of them")
    if not names:
        name_broken()
    named = dict.fromkeys(Target.parse(name) for name in target_names if name != "all")
    named |= dict.fromkeys(find_gpu(name).target for name in gpu_name)
    everywhere = "all" in target_names
    chosen = [find(name) for name in names] or list(entries().values())
    kernels = [kernel for entry in chosen for kernel in _kernels(entry, settings, models)]
    if names and not kernels:
        raise ArgumentError(f"{', '.join(names)}: known models have no shape for it; --models is for kernels that have k and n")
    pairs = [(kernel, target) for kernel in kernels for target in _targets(kernel, named, everywhere=everywhere)]
    results = list(_checked(pairs))
    failures = [result for result in results if result.error]
    if as_json:
        console.print_json([asdict(result) for result in results])
    elif results:
        columns = ("kernel", "target", "registers", "spilled B", "stack B", "shared B", "code B", "")
        rows = [_row(result) for result in results]
        console.print_table(columns, rows, numeric=columns[2:7], bold="registers")
        for failure in failures:
            console.echo(f"\n{failure.kernel}, {failure.target}: {failure.error}", err=True)
    if failures:
        ctx.exit(FAILED)


def name_broken() -> None:
    """Say on stderr which packages' kernels are not among all the kernels, and why."""
    from ptxgen.kernels.registry import broken

    for fault in broken():
        console.echo(f"not loaded: {fault}", err=True)


@dataclass(frozen=True)
class CheckResult:
    """One kernel on one target. Sizes in bytes; spilled counts stores and loads; error is None if all is well."""

    kernel: str
    target: str
    registers: int = 0
    spilled_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    code_bytes: int = 0
    error: str | None = None


def _kernels(entry: KernelEntry, settings: tuple[str, ...], models: bool) -> Iterator[KernelType]:
    from ptxgen.commands.shapes import parse_shape
    from ptxgen.kernels import known_models

    if models:
        yield from known_models.kernels(entry)
    elif settings:
        yield entry.make(**parse_shape(entry, settings))
    else:
        yield from entry.cases()


def _targets(kernel: KernelType, named: Iterable[Target], *, everywhere: bool) -> Iterable[Target]:
    """The targets to check a kernel on: those named, with `everywhere` all that it is for, and without either its oldest."""
    return dict.fromkeys([*(kernel.targets() if everywhere else ()), *named]) or (kernel.least_target,)


def _checked(pairs: Sequence[tuple[KernelType, Target]]) -> Iterator[CheckResult]:
    """In this order; many of them by several processes."""
    from multiprocessing import get_context

    with console.progress() as report, get_context("spawn").Pool() if len(pairs) >= MANY else nullcontext() as pool:
        results = pool.imap(_checked_pair, pairs, chunksize=16) if pool is not None else map(_checked_pair, pairs)
        for done, result in enumerate(results):
            report("check", done, len(pairs))
            yield result


def _checked_pair(pair: tuple[KernelType, Target]) -> CheckResult:
    return checked_on(*pair)


def checked_on(kernel: KernelType, target: Target) -> CheckResult:
    """What the assembler says of a kernel, and the verdict on it."""
    from ptxgen.toolchain.assemble import assemble
    from ptxgen.toolchain.machine_code import faults
    from ptxgen.toolchain.module import emit

    try:
        emitted = emit(kernel, target)
        assembled = assemble(emitted.text, emitted.target)
    except PtxGenError as error:
        return CheckResult(str(kernel), str(target), error=str(error))
    spilled = assembled.spill_stores + assembled.spill_loads
    fault = "; ".join(faults(assembled, kernel.launch().threads, kernel.most_code)) or None
    figures = (assembled.registers, spilled, assembled.stack, assembled.shared, assembled.code)
    return CheckResult(str(kernel), str(emitted.target), *figures, fault)


def _row(result: CheckResult) -> tuple[str, ...]:
    figures = (result.registers, result.spilled_bytes, result.stack_bytes, result.shared_bytes, result.code_bytes)
    shown = map(str, figures) if result.code_bytes else ("-",) * len(figures)
    return (result.kernel, result.target, *shown, "failed" if result.error else "ok")


def _shape(entry: KernelEntry) -> str:
    return ", ".join(name if default is MISSING else f"{name}={default}" for name, default in entry.parameters.items())


def _listed(entry: KernelEntry) -> dict[str, Any]:
    parameters = [
        {"name": name, "required": default is MISSING} | ({} if default is MISSING else {"default": _plain(default)})
        for name, default in entry.parameters.items()
    ]
    return {"name": entry.name, "family": entry.type.family, "parameters": parameters, "summary": entry.summary}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no such numbers
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
