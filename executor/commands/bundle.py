"""`ptxgen bundle`: all kernels of a model as files. It knows models, so it lives here; ptxgen finds it by its entry point."""

from __future__ import annotations

from pathlib import Path

import click

from executor.commands.session import context_option, precision_option
from ptxgen.commands import console
from ptxgen.commands.catalogue import target_names
from ptxgen.errors import ArgumentError
from ptxgen.target import DEFAULT, Target


@click.command("bundle")
@click.argument("path", metavar="MODEL.gguf", type=click.Path(path_type=Path))
@click.option("--target", "target_name", default=str(DEFAULT), show_default=True, help=f"GPU target: {target_names}")
@click.option("--batch", "words", default="1", show_default=True, metavar="1,4,8", help="How many sequences at once.")
@click.option("--cubin", is_flag=True, help="Add machine code for the target, so that nothing is compiled when it is loaded.")
@context_option
@precision_option
@click.option("-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The folder to write.")
def bundle_command(
    path: Path, target_name: str, words: str, cubin: bool, context: int | None, precision: str | None, output: Path
) -> None:
    """Write the PTX of every kernel that a model needs, and manifest.json, from which a program in any language can launch
    them: entries, parameters, geometry, buffers, and the launches of a token in order. No GPU is needed.

    \b
    Example:
      ptxgen bundle model.gguf --target sm_90 --cubin -o bundle
      ptxrun generate model.gguf --bundle bundle -p "The capital of France is"
    """
    from executor.bundle.write import write_bundle

    target = Target.parse(target_name)
    batches = _batches(words)
    with console.progress() as report:
        write_bundle(
            path,
            output,
            target,
            batches=batches,
            cubin=cubin,
            context=context,
            precision=precision,
            progress=lambda done, total: report("kernels", done, total),
        )


def _batches(words: str) -> list[int]:
    try:
        sizes = [int(word) for word in words.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"--batch {words[:80]!r} is not numbers of sequences with commas between them, such as 1,4,8")
    return sizes
