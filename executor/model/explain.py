"""Which kernel is chosen for each matrix of a model, and why: a profile's choices as rows. What a step launches of them is
recorded_step.py's business. Measures nothing but the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from executor.choice.choice import Choice, GpuProfile
from executor.gguf.gguf_file import GgufFile
from executor.layers.graph.resident import takes
from executor.layers.projection import require_fit
from executor.model.matrices import ModelMatrix, matrices
from ptxgen.kernels.registry import find


@dataclass(frozen=True)
class Explained:
    """A matrix of a model with its kernel. error: of a dot product, in the worst situation that was measured."""

    matrix: ModelMatrix
    choice: Choice
    error: float

    @property
    def parameters(self) -> dict[str, Any]:
        """Of the kernel, without its shape."""
        return {name: value for name, value in self.choice.kernel.parameters().items() if name not in ("k", "n")}

    @property
    def unusual(self) -> dict[str, Any]:
        """The parameters that are not the kernel's defaults."""
        usual = find(self.choice.kernel.name).parameters
        return {name: value for name, value in self.parameters.items() if usual.get(name) != value}

    def facts(self) -> dict[str, Any]:
        """Ready for JSON."""
        entry = self.choice.entry
        return {
            "tensors": dict(self.matrix.roles),
            "format": self.matrix.format.name,
            "k": self.matrix.k,
            "n": self.matrix.n,
            "kernel": self.choice.kernel.name,
            "parameters": self.parameters,
            "reason": self.choice.reason,
            "microseconds": None if entry is None or entry.seconds is None else entry.seconds * 1e6,
            "bytes_per_second": None if entry is None else entry.bytes_per_second,
            "clock": None if entry is None or entry.seconds is None else entry.clock,
            "error": self.error,
        }


def explain(file: GgufFile, profile: GpuProfile, tokens: int = 1) -> list[Explained]:
    """What the profile chooses for each format, as it is on the device, and shape of a model, in the order in which a token
    meets them. tokens: of a step. Raises ModelError for a file that is not a good model, ArgumentError for a profile that does
    not fit it.

    A matrix whose input has an outlier, which only running the model shows, gets an accurate kernel at any precision."""
    rows = []
    for stored in matrices(file):
        matrix = replace(stored, format=profile.at_load(stored.format, stored.k))
        choice = profile.choose(matrix.format, matrix.k, matrix.n, rows=tokens)
        require_fit(choice.kernel, matrix.format, matrix.roles[0][0], n=matrix.n, k=matrix.k, rows=tokens)
        measured = None if choice.entry is None else choice.entry.error
        error = max(choice.kernel.accuracy(np.random.default_rng(0)).values(), default=0.0) if measured is None else measured
        rows.append(Explained(matrix, choice, error))
    return rows


def kept_from_persistent(rows: Sequence[Explained]) -> list[str]:
    """The matrices of layers whose kernels no persistent kernel stands for: their layers take a launch for each operation."""
    return sorted({role for row in rows if not takes(row.choice.kernel) for role, _ in row.matrix.roles if role != "output"})
