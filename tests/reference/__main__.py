"""Prints how far the reference is from logits that another program computed: python -m tests.reference MODELS LOGITS [NAME...].

MODELS: a folder of NAME.gguf; LOGITS: a folder of NAME.npz with `tokens` and `logits`, f32[tokens, vocab]. The distance is the
largest difference over the standard deviation of the wanted logits. llama.cpp's CPU rounds the input of GELU to f16 and looks
the rest up; the second figure is against a model that does the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.reference import activations
from tests.reference_model import F64, ReferenceModel

LIMIT = 1e-4
"""Of the distance: both sum the same numbers, one in f32."""


def rounded_gelu(x: F64) -> F64:
    """GELU of x in f16, in f16, as ggml's table has it; beyond 10 it is x or 0."""
    table = activations.gelu(x.astype(np.float16).astype(np.float64)).astype(np.float16).astype(np.float64)
    return np.where(x <= -10, 0.0, np.where(x >= 10, x, table))


class RoundedGelu(ReferenceModel):
    """As llama.cpp on a CPU."""

    def activation(self, layer: int) -> activations.Activation:
        return rounded_gelu if self.arch.activation == "gelu" else super().activation(layer)


def distance(got: F64, want: F64) -> float:
    finite = np.isfinite(want)
    return float(np.abs(got - want)[finite].max() / want[finite].std())


def main(models: Path, logits: Path, *names: str) -> int:
    """Print a line for each model; the number of those beyond LIMIT."""
    wrong = 0
    for name in names or sorted(path.stem for path in logits.glob("*.npz")):
        recorded = np.load(logits / f"{name}.npz")
        try:
            model = ReferenceModel(models / f"{name}.gguf")
        except KeyError as error:
            print(f"{name:28} not computed: {error}")
            continue
        want = recorded["logits"].astype(np.float64)
        far = distance(model.logits(recorded["tokens"].tolist()), want)
        line = f"{name:28} {far:8.1e}"
        if model.arch.activation == "gelu":
            far = distance(RoundedGelu(models / f"{name}.gguf").logits(recorded["tokens"].tolist()), want)
            line += f" {far:8.1e}"
        wrong += far >= LIMIT
        print(line + ("  WRONG" if far >= LIMIT else ""))
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])))
