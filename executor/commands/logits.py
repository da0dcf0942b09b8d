"""`ptxrun logits`: writes the logits of a model after each token of a sequence."""

from __future__ import annotations

from pathlib import Path

import click

from executor.base.errors import ModelError
from executor.commands.session import bundle_option, context_option, device_option, precision_option, sanitize_option, session
from ptxgen.errors import ArgumentError
from ptxgen.files import replacing


@click.command("logits")
@click.argument("path", metavar="MODEL.gguf", type=click.Path(path_type=Path))
@click.option("--tokens", "words", required=True, metavar="1,2,3", help="The token ids of the sequence.")
@click.option("-o", "--output", required=True, metavar="FILE.npz", type=click.Path(path_type=Path), help="Where to write them.")
@device_option
@precision_option
@context_option
@bundle_option
@sanitize_option
def logits_command(
    path: Path,
    words: str,
    output: Path,
    device: str,
    precision: str | None,
    context: int | None,
    bundle: Path | None,
    sanitize: bool,
) -> None:
    """Write the array `logits` f32[tokens, vocabulary]: row i holds the logits after token i. NaN or infinity in them is an
    error, and is written all the same.

    \b
    Example:
      ptxrun logits model.gguf --tokens 504,3575,282 -o logits.npz
    """
    tokens = _tokens(words)
    with session(path, device, context=context, sanitize=sanitize, bundle=bundle, precision=precision) as running:
        logits = running.model.logits(tokens)
    import numpy as np

    with replacing(output) as stream:
        np.savez(stream, logits=logits)
    bad = ~np.isfinite(logits).all(axis=1)
    if bad.any():
        first = int(bad.argmax())
        raise ModelError(
            f"{int(bad.sum())} of {len(tokens)} rows hold NaN or infinity, the first after token {first} (id {tokens[first]}): "
            f"the weights are damaged or overflow f32; {output} has the rows as they are",
            path,
        )


def _tokens(words: str) -> list[int]:
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise ArgumentError(f"--tokens {words[:80]!r} is not token ids with commas between them, such as 1,2,3") from None
