"""How far the reference, or the executor on the emulator, is from logits that another program computed.

MODELS is a folder of NAME.gguf; LOGITS of NAME.npz with `tokens` and `logits`, f32[tokens, vocab]. The distance is the largest
difference over the standard deviation of the wanted logits. llama.cpp's CPU takes GELU from a table of f16 values: models with
GELU are 1e-3 away from it, and 1e-6 if ggml is compiled without GGML_GELU_FP16.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from executor.device import open_device
from executor.gguf.gguf_file import GgufFile
from executor.model.generation import LanguageModel
from ptxgen.errors import PtxGenError
from tests.reference.architectures import ARCHITECTURES
from tests.reference_model import F64, ReferenceModel

LIMIT: Final = 1e-4
"""Of the distance: both sum the same numbers, one in f32."""
TABLE: Final = 1e-2
"""Of the distance with a table for GELU."""


def distance(got: F64, want: F64) -> float:
    finite = np.isfinite(want)
    return float(np.abs(got - want)[finite].max() / want[finite].std())


def by_reference(path: Path, tokens: Sequence[int]) -> F64:
    """The logits in float64. KeyError for what it does not compute."""
    return ReferenceModel(path).logits(tokens)


def by_executor(path: Path, tokens: Sequence[int]) -> F64:
    """The logits of the kernels on the emulator. PtxGenError for what is refused."""
    with open_device("emulator") as device, LanguageModel.load(path, device, context=64) as model:
        return model.logits(tokens).astype(np.float64)


def verdict(path: Path, far: float) -> str:
    """right, WRONG, or what explains a distance."""
    if far < LIMIT:
        return "right"
    with GgufFile.open(path) as file:
        activation = ARCHITECTURES[str(file.metadata["general.architecture"])].activation
    return "GELU by table" if activation == "gelu" and far < TABLE else "WRONG"


def compared(models: Path, logits: Path, name: str, compute: Callable[[Path, Sequence[int]], F64]) -> dict[str, Any]:
    """What is to be said of one model."""
    path, recorded = models / f"{name}.gguf", np.load(logits / f"{name}.npz")
    try:
        got = compute(path, recorded["tokens"].tolist())
    except (KeyError, PtxGenError) as error:
        return {"model": name, "verdict": "not computed", "why": str(error).rpartition(f"{path}: ")[2]}
    far = distance(got, recorded["logits"].astype(np.float64))
    return {"model": name, "verdict": verdict(path, far), "distance": float(f"{far:.1e}")}


@click.command(help=__doc__)
@click.argument("models", type=click.Path(exists=True, path_type=Path))
@click.argument("logits", type=click.Path(exists=True, path_type=Path))
@click.argument("names", nargs=-1)
@click.option("--executor", "executed", is_flag=True, help="Compare the executor on the emulator.")
@click.option("--record", type=click.Path(path_type=Path), help="A JSON file for the distances.")
def main(models: Path, logits: Path, names: tuple[str, ...], executed: bool, record: Path | None) -> None:
    found = []
    if missing := [name for name in names if not (logits / f"{name}.npz").exists()]:
        raise click.BadParameter(f"{logits} has no logits of {', '.join(missing)}")
    for name in names or sorted(path.stem for path in logits.glob("*.npz")):
        found.append(compared(models, logits, name, by_executor if executed else by_reference))
        click.echo(f"{name:28} {found[-1].get('distance', '')!s:8} {found[-1]['verdict']} {found[-1].get('why', '')}")
    if record:
        record.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(any(one["verdict"] == "WRONG" for one in found))


if __name__ == "__main__":
    main()
