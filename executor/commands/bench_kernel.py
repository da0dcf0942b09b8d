"""`ptxrun bench KERNEL`: how long launches of a kernel take, beside others and beside what its work allows."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ptxgen import __version__
from ptxgen.commands import console
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.measure.kernel_speed import KernelSpeed
    from ptxgen.dsl.kernel_type import KernelType
    from ptxgen.kernels.registry import KernelEntry

ROUNDS: Final = 20


def kernel_named(subject: str) -> KernelEntry | None:
    """The kernel that `bench` was asked to time; None for a model: a path that has a folder or an ending, or a file that is
    there and has no kernel's name. ArgumentError with near names for a word that is neither."""
    from ptxgen.kernels.registry import find

    path = Path(subject)
    if "/" in subject or path.suffix:
        return None
    try:
        return find(subject)
    except ArgumentError as error:
        if path.exists():
            return None
        raise ArgumentError(f"{error.args[0]}; nor is there a model file of that name") from None


def bench_kernel(
    entry: KernelEntry,
    settings: Sequence[str],
    against: Sequence[str],
    rounds: int,
    device: str,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Time a kernel and those that it is compared with, and print the figures. Errors as the parts have them."""
    from executor.device import open_device
    from executor.launch.launch import Launcher
    from executor.launch.modules import Modules
    from executor.measure.kernel_plot import plot_kernels
    from executor.measure.kernel_speed import time_kernels
    from executor.measure.speed_plot import require_speed_plot
    from executor.model.decode_profile import limit_of, require_unwatched

    if plot is not None:
        require_speed_plot(plot)
    kernels = _kernels(entry, settings, against)
    with open_device(device) as opened:
        launcher = Launcher(opened, Modules(opened))
        require_unwatched(launcher)
        with console.progress() as report:
            limit = limit_of(opened)
            speeds = time_kernels(launcher, kernels, rounds, limit=limit, progress=partial(report, "rounds"))
        machine = {"reason": opened.reason} | opened.describe()
    if as_json:
        console.print_json(_facts(speeds, machine))
    else:
        _show(speeds, machine)
    if plot is not None:
        how = "times of the CPU" if limit is None else "each launch on arguments that no cache holds"
        plot_kernels(speeds, f"{machine['name']}, {how}", plot)


def _kernels(entry: KernelEntry, settings: Sequence[str], against: Sequence[str]) -> list[KernelType]:
    """The kernel with these settings, and each other one with those of them that it has."""
    from ptxgen.commands.shapes import parse_shape
    from ptxgen.kernels.registry import find

    kernels = [entry.make(**parse_shape(entry, settings))]
    for name in against:
        other = find(name)
        shared = [setting for setting in settings if setting.partition("=")[0] in other.parameters]
        kernels.append(other.make(**parse_shape(other, shared)))
    return kernels


def _facts(speeds: Sequence[KernelSpeed], machine: dict[str, Any]) -> dict[str, Any]:
    limit = speeds[0].limit
    return {
        "what": "launches of kernels in graphs, each on arguments that no cache holds",
        "limit": None
        if limit is None
        else {"read_bytes_per_second": limit.read_bytes, "flops_per_second": limit.flops, "source": limit.source},
        "machine": machine,
        "ptxgen": __version__,
        "command": shlex.join(["ptxrun", *sys.argv[1:]]),
        "results": [one.facts() | {"times_as_fast": speeds[0].median / one.median} for one in speeds],
    }


def _show(speeds: Sequence[KernelSpeed], machine: dict[str, Any]) -> None:
    limit = speeds[0].limit
    columns = ["kernel", "us", "least", "most", "GB/s", "GFLOP/s"]
    columns += (["of roofline"] if limit is not None else []) + (["times as fast"] if len(speeds) > 1 else [])
    console.print_table(columns, [_cells(one, speeds) for one in speeds], numeric=columns[1:], bold="us")
    console.echo(f"\nmedians of {len(speeds[0].seconds)} rounds on {machine['name']}", err=True)
    if limit is None:
        console.echo(
            "times of the emulator are the CPU's and say nothing about a GPU; it has no roofline. Arguments are not rotated",
            err=True,
        )
    else:
        console.echo(f"roofline: the kernel's own `work` at {limit.source}", err=True)


def _cells(one: KernelSpeed, speeds: Sequence[KernelSpeed]) -> list[str]:
    work = one.kernel.work()
    cells = [str(one.kernel), *(f"{seconds * 1e6:.2f}" for seconds in (one.median, min(one.seconds), max(one.seconds)))]
    cells += [f"{work.bytes / one.median / 1e9:.4g}", f"{work.flops / one.median / 1e9:.4g}"]
    if one.share is not None:
        cells.append(f"{one.share:.0%}")
    if len(speeds) > 1:
        cells.append(f"{speeds[0].median / one.median:.3f}")
    return cells
