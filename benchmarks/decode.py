"""Times decoding: tokens per second of a model, one sequence, greedy, each token waited for as a user would; and what the host
does for a token.

python -m benchmarks.decode --model SmolLM2.gguf --device cuda:0 -n 128 -o benchmarks/results/smollm2.json
python -m benchmarks.decode --synthetic llama-3.2-1b --precision fast --device cuda:0 -o benchmarks/results/llama-3.2-1b.json
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.given_model import given_model
from benchmarks.models import MODELS
from benchmarks.record import write
from executor.base.environment import PRECISIONS
from executor.base.rules import RULES
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.model.answer import Generation
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler

PROMPT = [1, 2, 3, 4]


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="A GGUF file.")
@click.option("--synthetic", type=click.Choice(sorted(MODELS)), help="A model with random weights instead.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Of the activations (default: the environment's).")
@click.option("--eager", is_flag=True, help="Launch by launch, not as a graph.")
@click.option("--device", default="auto")
@click.option("-n", "tokens", default=128, help="Tokens of a run.")
@click.option("--runs", default=5, help="Runs after one that warms up.")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(
    model: Path | None,
    synthetic: str | None,
    precision: str | None,
    eager: bool,
    device: str,
    tokens: int,
    runs: int,
    commit: str | None,
    output: Path,
) -> None:
    """Time greedy decoding and write the result as JSON."""
    with given_model(model, synthetic, vocabulary=False) as path, open_device(device) as opened:
        start = time.perf_counter()
        profile = GpuProfile.for_device(opened)
        if precision is not None:
            profile = replace(profile, precision=precision)
        loaded = LanguageModel.load(path, opened, profile=profile)
        load_seconds = time.perf_counter() - start
        if eager:
            loaded.decoder.launcher.observers.append(lambda record: None)
        sampler = Sampler(temperature=0.0)
        results = [generated(loaded, tokens, sampler) for _ in range(runs + 1)][1:]
        speeds = [result.tokens_per_second for result in results]
        record = {
            "what": "greedy decode, one sequence",
            "model": synthetic or path.name,
            "synthetic_weights": synthetic is not None,
            "precision": profile.precision,
            "profile": switches(profile),
            "way": "eager" if eager else "graph",
            "launches_per_token": len(loaded.decoder.prepare().whole),
            "inputs_with_outliers": len(loaded.decoder.flagged),
            "host": host_work(loaded, tokens),
            "prompt_tokens": len(PROMPT),
            "tokens": tokens,
            "tokens_per_second": {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds), "runs": runs},
            "first_token_seconds": statistics.median(result.prompt_seconds for result in results),
            "load_seconds": load_seconds,
        }
        write(output, record, opened.describe(), commit)
    click.echo(f"{record['model']}: {statistics.median(speeds):.1f} tok/s ({min(speeds):.1f} to {max(speeds):.1f})")


def switches(profile: GpuProfile) -> dict[str, Any]:
    """What the environment and what was measured before decided."""
    said: dict[str, Any] = {name: profile.allows(name) for name in RULES}
    return said | {"tables": [Path(table.source).name for table in profile.tables]}


def generated(model: LanguageModel, tokens: int, sampler: Sampler) -> Generation:
    """An answer to the whole prompt, none of which is taken from the run before."""
    model.forget()
    return model.generate(PROMPT, max_tokens=tokens, sampler=sampler, stop_tokens=())


def host_work(model: LanguageModel, tokens: int) -> dict[str, float]:
    """What the host does for a token: microseconds to start a step, and to fetch its token when the device has finished, of
    which the host waits some for the copy (medians); how often it waits and allocates."""
    decoder, device = model.decoder, model.decoder.device
    decoder.reset()
    decoder.step(PROMPT[0])
    decoder.argmax()
    start, fetch, wait = [], [], []
    marks, waits = device.allocations.mark(), device.waits
    for _ in range(tokens):
        before = time.perf_counter()
        decoder.step()
        start.append(time.perf_counter() - before)
        decoder.argmax()
    counts = {"allocations": (device.allocations.mark() - marks) / tokens, "waits": (device.waits - waits) / tokens}
    synchronize = device.synchronize

    def timed() -> None:
        before = time.perf_counter()
        synchronize()
        wait.append(time.perf_counter() - before)

    device.synchronize = timed  # type: ignore[method-assign]
    for _ in range(tokens):
        before = time.perf_counter()
        decoder.argmax()
        fetch.append(time.perf_counter() - before)
    del device.synchronize
    times = {"start_us": start, "fetch_us": fetch, "waiting_us": wait or [0.0]}
    return {name: statistics.median(seconds) * 1e6 for name, seconds in times.items()} | counts


if __name__ == "__main__":
    main()
