"""`ptxgen conform`: the conformance kit on the command line, a line a check."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from ptxgen.commands import console
from ptxgen.commands.catalogue import name_broken
from ptxgen.commands.completion import complete_kernels
from ptxgen.commands.options import json_option
from ptxgen.commands.start import FAILED


@click.command("conform")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_kernels)
@json_option()
@click.pass_context
def conform_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Check that kernels (all, or the named ones) keep the contract of a kernel type: text, assembly on every target, and a run
    of every sample shape under the sanitiser against the reference. As many kernels at once as there are processors.

    Exit code 1 if one of them does not. No GPU is needed.

    \b
    Example:
      ptxgen conform my_q4k_gemv
    """
    from ptxgen.conformance import Report, planned
    from ptxgen.conformance.report import Result, side_by_side

    if not names:
        name_broken()
    start = time.perf_counter()
    results: list[Result] = []
    for result in side_by_side(planned(*names)):
        results.append(result)
        if not as_json:
            console.echo(str(result))
    report = Report(tuple(results), time.perf_counter() - start)
    if as_json:
        console.print_json([asdict(one) | {"passed": one.passed} for one in results])
    else:
        for line in report.explanations():
            console.echo(line)
        console.echo(f"\n{report.sum}")
    if not report.passed:
        ctx.exit(FAILED)
