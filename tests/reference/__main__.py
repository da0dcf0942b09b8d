"""Prints how far the reference is from logits that another program computed: python -m tests.reference MODELS LOGITS [NAME...].

MODELS: a folder of NAME.gguf; LOGITS: a folder of NAME.npz with `tokens` and `logits`, f32[tokens, vocab]. The distance is the
largest difference over the standard deviation of the wanted logits. llama.cpp's CPU takes GELU from a table of f16 values, so
models with GELU are 1e-3 away from it, and 1e-6 if ggml is compiled without GGML_GELU_FP16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.reference_model import F64, ReferenceModel

LIMIT, TABLE = 1e-4, 1e-2
"""Of the distance: both sum the same numbers, one in f32, perhaps with a table for GELU."""


def distance(got: F64, want: F64) -> float:
    finite = np.isfinite(want)
    return float(np.abs(got - want)[finite].max() / want[finite].std())


def main(models: Path, logits: Path, *names: str) -> int:
    """Print a line for each model; the number of those that are wrong."""
    wrong = 0
    for name in names or sorted(path.stem for path in logits.glob("*.npz")):
        recorded = np.load(logits / f"{name}.npz")
        try:
            model = ReferenceModel(models / f"{name}.gguf")
            logits_here = model.logits(recorded["tokens"].tolist())
        except KeyError as error:
            print(f"{name:28} not computed: {error}")
            continue
        far = distance(logits_here, recorded["logits"].astype(np.float64))
        right = far < LIMIT
        by_table = model.arch.activation == "gelu" and far < TABLE
        wrong += not (right or by_table)
        print(f"{name:28} {far:8.1e}{'' if right else '  GELU by table' if by_table else '  WRONG'}")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])))
