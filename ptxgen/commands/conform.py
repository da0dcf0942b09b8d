"""`ptxgen conform`: the conformance kit on the command line, a line a check."""

from __future__ import annotations

from dataclasses import asdict

import click

from ptxgen.commands import console
from ptxgen.commands.catalogue import name_broken
from ptxgen.commands.options import json_option
from ptxgen.commands.start import FAILED


@click.command("conform")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option()
@click.pass_context
def conform_command(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Check that kernels (all, or the named ones) keep the contract of a kernel type: text, assembly on every target, and a run
    of every sample shape under the sanitiser against the reference.

    Exit code 1 if one of them does not. No GPU is needed.

    \b
    Example:
      ptxgen conform my_q4k_gemv
    """
    from ptxgen.conformance import Report, planned
    from ptxgen.conformance.report import Result, result

    if not names:
        name_broken()
    results: list[Result] = []
    for check in planned(*names):
        results.append(result(check))
        if not as_json:
            console.echo(str(results[-1]))
    report = Report(tuple(results))
    if as_json:
        console.print_json([asdict(one) | {"passed": one.passed} for one in results])
    else:
        for line in report.explanations():
            console.echo(line)
        console.echo(f"\n{report.sum}")
    if not report.passed:
        ctx.exit(FAILED)
