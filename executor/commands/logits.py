"""`ptxrun logits`: writes the logits of a model after each token of a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from executor.base.errors import ModelError
from executor.commands.session import AskedModel, model_argument, session, session_options, tokens_option
from ptxgen.commands.options import FILE
from ptxgen.files import replacing


@click.command("logits")
@model_argument
@tokens_option("The token ids of the sequence.", required=True)
@click.option("-o", "--output", required=True, metavar="FILE.npz", type=FILE, help="Where to write them.")
@session_options
def logits_command(asked: AskedModel, ids: list[int], output: Path, **options: Any) -> None:
    """Write the array `logits` f32[tokens, vocabulary]: row i holds the logits after token i. NaN or infinity in them is an
    error, and is written all the same.

    \b
    Example:
      ptxrun logits model.gguf --tokens 504,3575,282 -o logits.npz
    """
    with session(asked.path, **options) as running:
        logits = running.model.logits(ids)
    import numpy as np

    with replacing(output) as stream:
        np.savez(stream, logits=logits)
    bad = ~np.isfinite(logits).all(axis=1)
    if bad.any():
        first = int(bad.argmax())
        raise ModelError(
            f"{int(bad.sum())} of {len(ids)} rows hold NaN or infinity, the first after token {first} (id {ids[first]}): "
            f"the weights are damaged or overflow f32; {output} holds all rows as computed",
            asked.path,
        )
