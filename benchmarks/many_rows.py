"""Prompts, depths and batches of a model, accurate and fast, beside llama.cpp: runs `ptxrun bench` for each precision and keeps
what it says. Some 150 s on an H200, 12 of them to write the model (estimated).

python -m benchmarks.many_rows --device cuda:0 -o benchmarks/results    # llama-bench and llama-batched-bench on PATH
python -m benchmarks.rows_report benchmarks/results/rows-llama-3.1-8b-*-h200.json

llama.cpp runs as it comes beside `accurate`, and with GGML_CUDA_GRAPH_OPT=1 and steps of 2048 tokens beside `fast`: the one or
the other is faster for it, and the table takes the faster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.models import MODELS, write_q4_k_m
from benchmarks.record import git_commit
from executor.choice.store import one_a_line

PTXRUN: Final = (sys.executable, "-c", "from ptxgen.commands.start import ptxrun; ptxrun()")
THEIR_WAYS: Final = {"accurate": (), "fast": ("--vs-args", "-ub 2048", "--vs-env", "GGML_CUDA_GRAPH_OPT=1")}
"""How llama.cpp is run beside each precision."""


@click.command()
@click.option("--model", type=click.Choice(sorted(MODELS)), default="llama-3.1-8b", help="Whose shape; the weights are random.")
@click.option("--file", "given", type=click.Path(path_type=Path), help="The GGUF file, written if it is not there.")
@click.option("--device", default="cuda:0")
@click.option("--prompt", default="512,8192")
@click.option("--tokens", default=64)
@click.option("--depth", default="0,1024,8192")
@click.option("--batch", default="1,2,4,8,16,32")
@click.option("--batch-depth", default=128)
@click.option("--kv-type", help="How keys and values are kept, of ours (default: that of ptxrun).")
@click.option("--rounds", default=2)
@click.option("--alone", is_flag=True, help="Without llama.cpp.")
@click.option("--gpu", "suffix", default="h200", help="How the files' names end.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "folder", type=click.Path(path_type=Path), required=True)
def main(
    model: str, given: Path | None, device: str, prompt: str, tokens: int, depth: str, batch: str, batch_depth: int,
    kv_type: str | None, rounds: int, alone: bool, suffix: str, commit: str | None, folder: Path,
) -> None:  # fmt: skip
    """Time both precisions and write `rows-MODEL-PRECISION-GPU.json` of each."""
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        path = given or Path(scratch) / f"{model}-q4_k_m.gguf"
        if not path.exists():
            write_q4_k_m(model, path, vocabulary=True)
            click.echo(f"{time.perf_counter() - start:.0f} s: wrote {path.name}")
        options = ["--prompt", prompt, "--tokens", tokens, "--depth", depth, "--batch", batch, "--batch-depth", batch_depth]
        options += [] if kv_type is None else ["--kv-type", kv_type]
        for precision, their_way in THEIR_WAYS.items():
            words = [*options, "--rounds", rounds, "--device", device, "--precision", precision]
            facts = _bench(path, [*words, *(() if alone else ("--vs", "llama.cpp", *their_way))])
            record = {**facts, "model": f"{model}, random weights, Q4_K_M", "commit": commit or git_commit()}
            output = folder / f"rows-{model}-{precision}-{suffix}.json"
            output.write_text(one_a_line(record, "results"))
            click.echo(f"{time.perf_counter() - start:.0f} s: wrote {output.name}")


def _bench(path: Path, words: list[Any]) -> dict[str, Any]:
    """What `ptxrun bench --json` says; what it shows besides goes to our stderr. Exits as it does if it fails."""
    run = subprocess.run([*PTXRUN, "bench", str(path), *map(str, words), "--json"], stdout=subprocess.PIPE, check=False)
    if run.returncode:
        sys.exit(run.returncode)
    facts: dict[str, Any] = json.loads(run.stdout)
    return facts


if __name__ == "__main__":
    main()
