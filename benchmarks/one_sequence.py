"""One sequence of each of six models, `accurate` and `fast`, beside llama.cpp: greedy, each token read back (while the next
step runs already), all ways in turn on the same file and GPU.

python -m benchmarks.one_sequence --device cuda:0 -o benchmarks/results/one-sequence-h200.json    # llama-bench on PATH
python -m benchmarks.one_sequence --models qwen3-0.6b-q4_k_m -o benchmarks/results/one-sequence-qwen3-h200.json
python -m benchmarks.one_sequence_report benchmarks/results/one-sequence-*h200.json

All six take two and a half minutes of an H200 with 16 processors. The result is written after each model, so that a run that is
cut off keeps those before; --models goes on with the others in a file of their own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.decode import PROMPT, generated, switches
from benchmarks.models import write_q4_k_m, write_q8_0
from benchmarks.record import write
from executor.base.environment import PRECISIONS
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.cuda import CudaDevice
from executor.device.protocol import Device
from executor.gguf.gguf_file import GgufFile
from executor.measure.bandwidth import bandwidth
from executor.measure.llama_cpp import LlamaCpp
from executor.measure.speed import Speed, SpeedCase
from executor.model.generation import LanguageModel
from executor.model.matrices import matrices
from executor.model.sampling import Sampler
from ptxgen import __version__

CONTEXT: Final = 256
REPEATED: Final = 3
"""Answers of a turn, the middle one of which counts, as llama-bench decodes three times in a run."""
THEIR_WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "as it comes": {},
    "GGML_CUDA_GRAPH_OPT=1": {"GGML_CUDA_GRAPH_OPT": "1"},
}
"""How llama.cpp is run, and the variables for that: the one or the other is faster."""


@dataclass(frozen=True)
class Subject:
    """A model. shape: of MODELS; write: makes its file; must: how many times llama.cpp's speed is wanted."""

    name: str
    shape: str
    write: Callable[..., None]
    must: float


SIX: Final[Mapping[str, Subject]] = {
    "llama-3.1-8b-q4_k_m": Subject("Llama-3.1-8B Q4_K_M", "llama-3.1-8b", write_q4_k_m, 2.3),
    "llama-3.1-8b-q8_0": Subject("Llama-3.1-8B Q8_0", "llama-3.1-8b", write_q8_0, 1.8),
    "llama-3.2-1b-q4_k_m": Subject("Llama-3.2-1B Q4_K_M", "llama-3.2-1b", write_q4_k_m, 2.3),
    "qwen2.5-1.5b-q4_k_m": Subject("Qwen2.5-1.5B Q4_K_M", "qwen2.5-1.5b", write_q4_k_m, 2.3),
    "qwen2.5-7b-q4_k_m": Subject("Qwen2.5-7B Q4_K_M", "qwen2.5-7b", write_q4_k_m, 2.2),
    "qwen3-0.6b-q4_k_m": Subject("Qwen3-0.6B Q4_K_M", "qwen3-0.6b", write_q4_k_m, 2.5),
}


def _chosen(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str]:
    names = list(dict.fromkeys(text.split(","))) if text else list(SIX)
    if unknown := [name for name in names if name not in SIX]:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(SIX)}")
    return names


@click.command()
@click.option("--models", "names", callback=_chosen, metavar="NAME,...", help=f"Of {', '.join(SIX)} (default: all).")
@click.option("--device", default="cuda:0")
@click.option("--tokens", default=128, type=click.IntRange(2, CONTEXT - len(PROMPT)), help="Of an answer.")
@click.option("--rounds", default=3, type=click.IntRange(1), help="Turns of each way, whose median counts.")
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(names: list[str], device: str, tokens: int, rounds: int, commit: str | None, output: Path) -> None:
    """Time each model in all ways, and write one JSON, anew after each model."""
    start = time.perf_counter()
    record: dict[str, Any] = {
        "what": "greedy decode, one sequence, each token read back while the next step runs; llama.cpp in turn",
        "synthetic_weights": True,
        "prompt_tokens": len(PROMPT),
        "tokens": tokens,
        "rounds": rounds,
        "ptxgen": __version__,
        "results": [],
    }
    with open_device(device) as opened:
        record["read_limit_bytes_per_second"] = bandwidth(opened) if opened.kind == "cuda" else None
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{name}.gguf"
                SIX[name].write(SIX[name].shape, path, vocabulary=True)
                click.echo(f"{time.perf_counter() - start:.0f} s: wrote {path.name}")
                record["results"].append({"model": SIX[name].name} | measured(path, opened, tokens, rounds))
            record["seconds"] = time.perf_counter() - start
            write(output, record, opened.describe(), commit)
            click.echo(f"{record['seconds']:.0f} s: {name} is in {output.name}")


def measured(path: Path, device: Device, tokens: int, rounds: int) -> dict[str, Any]:
    """Load a model once, and let it and llama.cpp decode in turn, ours first in one round and llama.cpp in the next."""
    start = time.perf_counter()
    peers = {way: LlamaCpp.find(path, environment=environment) for way, environment in THEIR_WAYS.items()}
    if isinstance(device, CudaDevice):
        peers = {way: peer.on(device.ordinal) for way, peer in peers.items()}
    with GgufFile.open(path) as file:
        weight_bytes = sum(matrix.nbytes * tensors for matrix in matrices(file) for _, tensors in matrix.roles)
    with LanguageModel.load(path, device, context=CONTEXT) as model:
        load_seconds = time.perf_counter() - start
        profile = model.decoder.profile
        profiles = {precision: replace(profile, precision=precision) for precision in PRECISIONS}
        case = SpeedCase("depth", tokens, 0)
        ways: dict[str, Callable[[], float]] = {
            **{name: partial(_ours, model, one, tokens) for name, one in profiles.items()},
            **{name: partial(_theirs, peer, case) for name, peer in peers.items()},
        }
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for precision in PRECISIONS:
            ways[precision]()  # kernels are compiled, and outliers are found
        for number in range(rounds):
            for name in ways if number % 2 == 0 else reversed(ways):
                speeds[name].append(ways[name]())
        cache_bytes = model.decoder.cache.nbytes / model.context * (len(PROMPT) + (tokens + 1) / 2)
        flagged = len(model.decoder.flagged)
    facts = {name: Speed(tuple(values)).facts() for name, values in speeds.items()}
    first = next(iter(peers.values()))
    return {
        "file_bytes": path.stat().st_size,
        "weight_bytes_a_step": weight_bytes,
        "cache_bytes_a_step": cache_bytes,
        "load_seconds": load_seconds,
        "inputs_with_outliers": flagged,
        "profile": switches(profile),
        "tokens_per_second": {precision: facts[precision] for precision in PRECISIONS},
        "llama_cpp": {way: facts[way] for way in peers},
        "llama_cpp_facts": first.facts | {"commands": [command for peer in peers.values() for command in peer.commands]},
    }


def _ours(model: LanguageModel, profile: GpuProfile, tokens: int) -> float:
    """Tokens a second after the first one, the middle of some answers."""
    model.decoder.profile = profile
    return statistics.median(generated(model, tokens, Sampler(temperature=0.0)).tokens_per_second for _ in range(REPEATED))


def _theirs(peer: LlamaCpp, case: SpeedCase) -> float:
    return peer.speeds([case])[case]


if __name__ == "__main__":
    main()
