"""One sequence with the rules of GpuProfile: greedy, each token read back while the next step runs, a load for each variant.

python -m benchmarks.decode_switches --models llama-3.1-8b,llama-3.2-1b --variant "as it comes" --variant repack \
    --variant "repack, no horizontal_fusion" -o benchmarks/results/decode-switches-h200.json

A variant names the rules that are on, or, after `no`, off; all others are as they come on this GPU.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.decode import PROMPT, generated
from benchmarks.models import MODELS, write_q4_k_m
from benchmarks.record import write
from executor.base.environment import PRECISIONS
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.protocol import Device
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError

AS_IT_COMES: Final = "as it comes"
CONTEXT: Final = 256


def switched(profile: GpuProfile, variant: str) -> GpuProfile:
    """A profile with the rules of a variant; UsageError for a word that is none."""
    if variant == AS_IT_COMES:
        return profile
    for word in (part.strip() for part in variant.split(",")):
        name = word.removeprefix("no ")
        try:
            profile = profile.with_rules(name) if name == word else profile.without(name)
        except ArgumentError as error:
            raise click.UsageError(f"{error}, or {AS_IT_COMES!r}") from error
    return profile


@click.command()
@click.option("--models", "names", required=True, metavar="NAME,...", help=f"Of {', '.join(MODELS)}; random weights, Q4_K_M.")
@click.option("--variant", "variants", multiple=True, default=[AS_IT_COMES], show_default=True)
@click.option("--device", default="cuda:0", show_default=True)
@click.option("--tokens", default=128, type=click.IntRange(2, CONTEXT - len(PROMPT)), show_default=True, help="Of an answer.")
@click.option("--runs", default=5, type=click.IntRange(1), show_default=True, help="Answers after one that warms up.")
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(names: str, variants: Sequence[str], device: str, tokens: int, runs: int, commit: str | None, output: Path) -> None:
    """Time each model with each variant and write one JSON, anew after each variant."""
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in MODELS]:
        raise click.UsageError(f"{unknown[0]!r} is no model; allowed: {', '.join(MODELS)}")
    for variant in variants:
        switched(GpuProfile(), variant)  # before anything is written
    record: dict[str, Any] = {
        "what": "one sequence with rules of GpuProfile",
        "unit": f"tokens a second, greedy; median, least, most of {runs} answers of {tokens} tokens; Q4_K_M, context {CONTEXT}",
        "synthetic_weights": True,
        "results": [],
    }
    with open_device(device) as opened:
        for name in chosen:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{name}.gguf"
                write_q4_k_m(name, path)
                for variant in variants:
                    result = {"model": name, "variant": variant} | measured(path, opened, variant, tokens, runs)
                    record["results"].append(result)
                    write(output, record, opened.describe(), commit)
                    click.echo(f"{name}, {variant}: " + ", ".join(f"{one} {result[one]['median']}" for one in PRECISIONS))


def measured(path: Path, device: Device, variant: str, tokens: int, runs: int) -> dict[str, Any]:
    """By precision, the tokens a second of a model that is loaded with a variant."""
    profile = switched(GpuProfile.for_device(device), variant)
    speeds: dict[str, Any] = {}
    with LanguageModel.load(path, device, context=CONTEXT, profile=profile) as model:
        for precision in PRECISIONS:
            model.decoder.profile = replace(profile, precision=precision)
            found = [generated(model, tokens, Sampler(temperature=0.0)).tokens_per_second for _ in range(runs + 1)][1:]
            shown = {"median": statistics.median(found), "min": min(found), "max": max(found)}
            speeds[precision] = {name: round(value, 1) for name, value in shown.items()}
    return speeds


if __name__ == "__main__":
    main()
