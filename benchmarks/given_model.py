"""The model that a benchmark is given: a file, or a synthetic one, which is there while it is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from benchmarks.models import write_q4_k_m


@contextmanager
def given_model(model: Path | None, synthetic: str | None, *, vocabulary: bool = True) -> Iterator[Path]:
    """The file `model`, or the model `synthetic` (Q4_K_M, with a vocabulary unless that is not wanted) in a folder that is
    removed at the end. UsageError unless exactly one is given."""
    if (model is None) == (synthetic is None):
        raise click.UsageError("give either --model or --synthetic")
    if model is not None:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{synthetic}.gguf"
        write_q4_k_m(str(synthetic), path, vocabulary=vocabulary)
        yield path
