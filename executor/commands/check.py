"""`ptxrun check`: whether a model will run, with which kernels, in how much memory and how fast."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

import click
from click.exceptions import Exit

from executor.commands.session import AskedModel, context_option, model_argument, precision_option
from ptxgen.commands import console
from ptxgen.commands.options import gpu_option, json_option
from ptxgen.commands.start import FAILED

if TYPE_CHECKING:
    from executor.model.check import CheckedModel

GB: Final = 1e9


@click.command("check")
@model_argument
@gpu_option(
    "The GPU to run on: l4, rtx4090, ..., or sm_89 for the fastest of a generation (default: h200). It need not be there."
)
@context_option
@precision_option
@json_option()
def check_command(asked: AskedModel, gpu_name: str | None, context: int | None, precision: str | None, as_json: bool) -> None:
    """Say whether a model will run on a GPU, and if not why, and what runs in its place. For one that runs: the kernels of its
    matrices for a token and for a prompt, before neighbouring operations are fused (`ptxrun explain` shows the launches), the
    memory for a context, and the speed that is expected of one sequence. No GPU is needed, and no weights are read. A model of
    the hub is fetched first.

    The exit code is 0 for a model that runs, 1 for one that does not, 2 for a wrong call.

    \b
    Example:
      ptxrun check model.gguf --gpu rtx4090 --context 8192
    """
    from executor.base.errors import ModelError, OutOfMemory
    from executor.gguf.gguf_file import GgufFile
    from executor.model.check import check_model
    from executor.model.expected_speed import named_gpu

    gpu, path = named_gpu(gpu_name), asked.path
    try:
        with GgufFile.open(path) as file:
            found = check_model(file, gpu, context, precision)
    except (ModelError, OutOfMemory) as error:
        if not path.exists():
            raise
        reason = str(error).removeprefix(f"{path}: ")
        if as_json:
            console.print_json({"model": str(path), "runs": False, "reason": reason})
        else:
            _wrap(f"does not run: {reason}")
        raise Exit(FAILED) from error
    if as_json:
        console.print_json({"model": str(path), "runs": True} | found.facts())
    else:
        _print(found)


def _print(found: CheckedModel) -> None:
    spec, memory = found.spec, found.memory
    formats = ", ".join(dict.fromkeys(row.matrix.type for row in found.rows))
    layers = console.counted(spec.layers, "layer")
    console.echo(
        f"runs: {spec.architecture}, {layers}, {formats}; on {found.gpu.title} ({found.gpu.target}), {found.precision}"
    )
    if found.no_text is not None:
        _wrap(f"only by token ids, as --tokens takes them: {found.no_text}")
    console.echo()
    cells = []
    for row, many in zip(found.rows, found.prompt, strict=True):
        m, tensors = row.matrix, ", ".join(role for role, _ in row.matrix.roles)
        cells.append((tensors, m.type, f"{m.k} x {m.n}", row.choice.kernel.name, many.choice.kernel.name))
    console.print_table(("tensors", "type", "K x N", "kernel of a token", "of a prompt"), cells)
    console.echo()
    more = f", {memory.loading / GB:.2f} more at first" if memory.loading else ""
    _wrap(
        f"memory: {memory.total / GB:.2f} GB: weights {memory.weights / GB:.2f}{more}, KV cache {memory.cache / GB:.2f} for "
        f"{console.counted(memory.context, 'token')}, activations {memory.activations / GB:.2f}; prompts take up to "
        f"{memory.prompts / GB:.2f} more"
    )
    empty, full = found.speeds
    _wrap(
        f"expected, not measured: {empty.tokens_per_second:.0f} tokens/s of one sequence, {full.tokens_per_second:.0f} with a "
        f"full context ({empty.weight_bytes / GB:.2f} GB of weights a token, up to {full.cache_bytes / GB:.2f} of cache, at "
        f"{found.gpu.bandwidth_gbps} GB/s by the data sheet)"
    )


def _wrap(sentence: str) -> None:
    console.echo(textwrap.fill(sentence, console.WIDTH, subsequent_indent="   ", break_long_words=False))
