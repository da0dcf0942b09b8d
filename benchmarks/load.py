"""Times starts of a model: a process each, from its beginning until the first token is there, first with no compiled kernels on
disk, then with them; and the upload of the weights within. The file is in the page cache.

python -m benchmarks.load --synthetic llama-3.1-8b --device cuda:0 -o benchmarks/results/load-llama-3.1-8b.json
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.given_model import given_model
from benchmarks.models import MODELS
from benchmarks.record import write

STAGES: Final = ("imported", "opened", "read", "uploaded", "kernels", "loaded", "answered")
"""What has been done, in order: Python and the packages; the device; header and vocabulary of the file, and the first piece of
the weights; the other weights; kernels; what is left of loading; the prompt, encoded if there is a vocabulary, and a token."""


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="A GGUF file.")
@click.option("--synthetic", type=click.Choice(sorted(MODELS)), help="A model with random weights and a vocabulary instead.")
@click.option("--device", default="auto")
@click.option("--runs", default=5, help="Starts with compiled kernels on disk, after the first one without.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(model: Path | None, synthetic: str | None, device: str, runs: int, commit: str | None, output: Path) -> None:
    """Time starts and write the result as JSON."""
    with given_model(model, synthetic) as path, tempfile.TemporaryDirectory() as folder:
        _read_through(path)
        cache = Path(folder) / "cache"
        starts = [_start(path, device, cache) for _ in range(runs + 1)]
    cold, warm = starts[0], starts[1:]
    record = {
        "what": "start of a process until its first token; seconds; warm: with compiled kernels on disk, medians",
        "model": synthetic or path.name,
        "synthetic_weights": synthetic is not None,
        "weight_bytes": cold["weight_bytes"],
        "cold": cold["seconds"],
        "warm": {key: statistics.median(start["seconds"][key] for start in warm) for key in cold["seconds"]},
        "upload_gb_per_second": {
            "median": statistics.median(start["upload_gb_per_second"] for start in warm),
            "min": min(start["upload_gb_per_second"] for start in warm),
            "max": max(start["upload_gb_per_second"] for start in warm),
        },
        "runs": runs,
        "kernels": {"cold": cold["kernels"], "warm": warm[-1]["kernels"]},
        "host_cpus": len(os.sched_getaffinity(0)),
    }
    write(output, record, cold["machine"], commit)
    for name, seconds in (("cold", record["cold"]), ("warm", record["warm"])):
        parts = ", ".join(f"{stage} {seconds[stage]:.2f}" for stage in STAGES)
        click.echo(f"{name}: {seconds['total']:.2f} s, {seconds['besides_upload']:.2f} s besides the upload ({parts})")
    click.echo(f"upload: {record['upload_gb_per_second']['median']:.2f} GB/s")


def _read_through(path: Path) -> None:
    """Bring a file into the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def _start(model: Path, device: str, cache: Path) -> dict[str, Any]:
    """Start a process and have it answer; what it measured."""
    command = [sys.executable, "-m", "benchmarks.load", "--child", str(time.time()), str(model), device]
    environment = os.environ | {"PTXGEN_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    start: dict[str, Any] = json.loads(done.stdout)
    return start


def child(began: float, model: str, device: str) -> dict[str, Any]:
    """Load the model and make a token in this process, which its parent started at `began` (seconds since the epoch)."""
    from executor.base.errors import ModelError
    from executor.device import open_device
    from executor.model.generation import LanguageModel
    from executor.model.sampling import Sampler

    moments = {"imported": time.time()}
    first = total = 0

    def progress(stage: str, done: int, of: int) -> None:
        nonlocal first, total
        now = time.time()
        if stage == "weights":
            if "read" not in moments:
                moments["read"], first = now, done
            moments["uploaded"], total = now, of
        elif stage == "kernels":
            moments["kernels"] = now

    with open_device(device) as opened:
        moments["opened"] = time.time()
        loaded = LanguageModel.load(model, opened, progress=progress)
        moments["loaded"] = time.time()
        try:
            prompt = loaded.tokenizer.encode("abcd")
        except ModelError:  # a file without a vocabulary
            prompt = [1, 2, 3]
        loaded.generate(prompt, max_tokens=1, sampler=Sampler())
        moments["answered"] = time.time()
        kernels, machine = str(loaded.modules.counts), opened.describe()
    ends = [began, *(moments[stage] for stage in STAGES)]
    seconds = {stage: end - start for stage, start, end in zip(STAGES, ends, ends[1:], strict=False)}
    whole = moments["answered"] - began
    return {
        "seconds": seconds | {"total": whole, "besides_upload": whole - seconds["uploaded"]},
        "weight_bytes": total,
        "upload_gb_per_second": (total - first) / max(seconds["uploaded"], 1e-9) / 1e9,
        "kernels": kernels,
        "machine": machine,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.stdout.write(json.dumps(child(float(sys.argv[2]), sys.argv[3], sys.argv[4])))
    else:
        main()
