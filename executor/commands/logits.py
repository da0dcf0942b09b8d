"""`ptxrun logits`: writes the logits of a model after each token of a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from executor.base.errors import ModelError
from executor.commands.session import AskedModel, model_argument, session, session_options
from ptxgen.commands.options import FILE, whole_numbers
from ptxgen.files import replacing


@click.command("logits")
@model_argument
@click.option("--tokens", "ids", required=True, metavar="1,2,3", help="The token ids of the sequence.")
@click.option("-o", "--output", required=True, metavar="FILE.npz", type=FILE, help="Where to write them.")
@session_options
def logits_command(asked: AskedModel, ids: str, output: Path, **options: Any) -> None:
    """Write the array `logits` f32[tokens, vocabulary]: row i holds the logits after token i. NaN or infinity in them is an
    error, and is written all the same.

    \b
    Example:
      ptxrun logits model.gguf --tokens 504,3575,282 -o logits.npz
    """
    tokens = whole_numbers("--tokens", ids, "token ids", "1,2,3")
    with session(asked.path, **options) as running:
        logits = running.model.logits(tokens)
    import numpy as np

    with replacing(output) as stream:
        np.savez(stream, logits=logits)
    bad = ~np.isfinite(logits).all(axis=1)
    if bad.any():
        first = int(bad.argmax())
        raise ModelError(
            f"{int(bad.sum())} of {len(tokens)} rows hold NaN or infinity, the first after token {first} (id {tokens[first]}): "
            f"the weights are damaged or overflow f32; {output} holds all rows as computed",
            asked.path,
        )
