"""`ptxgen bundle`: all kernels of a model as files. It knows models, so it lives here; ptxgen finds it by its entry point."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from executor.commands.session import AskedModel, context_option, model_argument, precision_option
from ptxgen.commands import console
from ptxgen.commands.options import FILE, gpu_option, parse_target, target_option, whole_numbers
from ptxgen.target import DEFAULT


@click.command("bundle")
@model_argument
@target_option(str(DEFAULT))
@gpu_option()
@click.option("--batch", "batches", default="1", show_default=True, metavar="1,4,8", help="How many sequences at once.")
@click.option("--cubin", is_flag=True, help="Add machine code for the target, so that nothing is compiled when it is loaded.")
@context_option
@precision_option
@click.option("-o", "--output", required=True, metavar="DIR", type=FILE, help="The folder to write.")
def bundle_command(
    asked: AskedModel,
    target_name: str | None,
    gpu_name: str | None,
    batches: str,
    cubin: bool,
    context: int | None,
    precision: str | None,
    output: Path,
) -> None:
    """Write the PTX of every kernel that a model needs, and manifest.json, from which a program in any language can launch
    them: entries, parameters, geometry, buffers, and the launches of a token in order. No GPU is needed.

    \b
    Example:
      ptxgen bundle model.gguf --target sm_90 --cubin -o bundle
      ptxrun generate model.gguf --bundle bundle -p "The capital of France is"
    """
    from executor.bundle.write import write_bundle

    target = parse_target(target_name, gpu_name) or DEFAULT
    sizes = whole_numbers("--batch", batches, "numbers of sequences", "1,4,8", low=1)
    with console.progress() as report:
        write_bundle(
            asked.path,
            output,
            target,
            batches=sizes,
            cubin=cubin,
            context=context,
            precision=precision,
            progress=partial(report, "kernels"),
        )
