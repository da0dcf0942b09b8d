"""`ptxgen explain`: one kernel taken apart, as tables, as JSON or as a page. What is said is gathered in ptxgen/explain."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptxgen.commands import console
from ptxgen.commands.completion import complete_kernels
from ptxgen.commands.options import FILE, gpu_option, json_option, parse_target, set_option, target_option
from ptxgen.files import replacing

if TYPE_CHECKING:
    from ptxgen.explain.explanation import Explanation


@click.command("explain")
@click.argument("name", shell_complete=complete_kernels)
@set_option
@target_option("the GPU's own")
@gpu_option("GPU whose figures count (default h200, or one of the target's generation): l4, rtx4090, ...")
@click.option("page", "--html", type=FILE, help="Write a page with Python, PTX and, with nvdisasm, SASS side by side.")
@click.option("--listing/--no-listing", default=True, help="Print the PTX under the Python lines that wrote it (default: yes).")
@json_option()
def explain_command(
    name: str,
    settings: tuple[str, ...],
    target_name: str | None,
    gpu_name: str | None,
    page: Path | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Take one kernel apart: arguments, geometry, memory traffic, registers, occupancy, instruction mix, the bound by each unit
    of a GPU, and the PTX of each Python line. No GPU is needed.

    \b
    Examples:
      ptxgen explain q4k_gemv --set k=4096 --set n=4096 --gpu rtx4090
      ptxgen explain rmsnorm --set hidden=4096 --html rmsnorm.html
    """
    from ptxgen.commands.shapes import parse_shape
    from ptxgen.explain import report
    from ptxgen.explain.explanation import explain
    from ptxgen.gpus.gpu import DEFAULT_GPU, find_gpu, newest_for
    from ptxgen.kernels.registry import find

    target = parse_target(target_name)
    entry = find(name)
    kernel = entry.make(**parse_shape(entry, settings))
    if gpu_name is not None:
        gpu = find_gpu(gpu_name)
    elif target is None and kernel.runs_on(DEFAULT_GPU.target):
        gpu = DEFAULT_GPU
    else:
        gpu = newest_for(target or kernel.least_target)
    explanation = explain(kernel, target or gpu.target, gpu)
    if page is not None:
        from ptxgen.explain.page import render

        with replacing(page) as stream:
            stream.write(render(explanation).encode())
        console.echo(f"wrote {page.resolve()}", err=as_json)
    if as_json:
        console.print_json(report.facts(explanation))
    elif page is None:
        _print(explanation, listing=listing)


def _print(explanation: Explanation, *, listing: bool) -> None:
    from ptxgen.explain import report

    e = explanation
    console.echo(str(e.kernel), bold=True)
    console.echo(e.doc + "\n")
    console.print_table(("argument", "type", "", "bytes"), report.argument_rows(e), numeric=("bytes",))
    console.echo()
    for label, text in report.summary(e):
        console.echo(textwrap.fill(f"{label:11}{text}", console.WIDTH, subsequent_indent=" " * 11))
    for title, mix in report.mixes(e):
        console.echo(f"\n{title}")
        counts = [(unit.value, str(count)) for unit, count in mix.instructions.items()]
        console.print_table(("unit", "instructions"), counts, numeric=("instructions",))
    console.echo()
    columns = ("bound", "clocks a pass", "us", "of the tightest")
    console.print_table(columns, report.bound_rows(e), numeric=columns[1:], bold="us")
    console.echo(textwrap.fill(report.caveat(e), console.WIDTH))
    if e.accuracy:
        console.echo()
        error = "rms error / rms of reference"
        console.print_table(("accuracy", error), report.accuracy_rows(e), numeric=(error,))
    if listing:
        console.echo()
        for line in report.listing(e):
            console.echo(line)
