"""Decoding and prompts of each weight format beside llama.cpp: a few layers of an 8B whose matrices all have that format.

python -m benchmarks.formats --device cuda:0 -o benchmarks/results/formats-h200.json    # llama-bench on PATH
python -m benchmarks.formats --formats IQ3_S,TQ2_0 --layers 4 -o ...

Some 12 s a format on an H200 with 16 processors. The result is written after each.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.many_rows import PTXRUN
from benchmarks.models import MODELS, layers_of, write_shape
from benchmarks.record import write

FORMATS: Final = (
    "IQ1_S,IQ1_M,IQ2_XXS,IQ2_XS,IQ2_S,IQ3_XXS,IQ3_S,TQ1_0,TQ2_0,Q1_0,NVFP4,MXFP4,IQ4_XS,Q2_K,Q3_K,Q4_0,Q4_K,Q5_K,Q6_K,Q8_0"
)
VOCABULARY: Final = 4096
"""Tokens: the head is no part of what is compared."""


@click.command()
@click.option("--formats", default=FORMATS, show_default=True, help="Their GGML names, by commas.")
@click.option("--layers", default=4, show_default=True, help="Of the model.")
@click.option("--device", default="cuda:0")
@click.option("--rounds", default=1)
@click.option("--alone", is_flag=True, help="Without llama.cpp.")
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(formats: str, layers: int, device: str, rounds: int, alone: bool, commit: str | None, output: Path) -> None:
    """Time each format with `ptxrun bench`, and write one JSON."""
    start = time.perf_counter()
    shape = replace(MODELS["llama-3.1-8b"], layers=layers, vocab=VOCABULARY)
    results: list[dict[str, Any]] = []
    for name in formats.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.gguf"
            write_shape(shape, path, layers_of(name), vocabulary=True)
            options = ["--device", device, "--prompt", "512", "--tokens", "64", "--rounds", str(rounds), "--json"]
            options += [] if alone else ["--vs", "llama.cpp"]
            done = subprocess.run([*PTXRUN, "bench", str(path), *options], capture_output=True, text=True, check=False)
        if done.returncode:
            click.echo(f"{name}: {done.stderr[-300:]}", err=True)
            continue
        said = json.loads(done.stdout)
        results += [{"format": name} | one for one in said["results"] if one["kind"] != "batch"]
        facts = {key: said[key] for key in ("precision", "ptxgen", "llama_cpp") if key in said}
        record = {
            "what": "formats, few layers of an 8B",
            "layers": layers,
            "vocabulary": VOCABULARY,
            **facts,
            "results": results,
        }
        write(output, record, said["machine"], commit)
        click.echo(f"{time.perf_counter() - start:.0f} s: {name}")


if __name__ == "__main__":
    main()
