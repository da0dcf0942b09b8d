"""Times `ptxrun serve` under many clients at once, whose answers are streamed to processes of their own, and the scheduler by
itself on the same prompts: what the server costs.

python -m benchmarks.serve_load --synthetic llama-3.1-8b --device cuda:0 --clients 64,256 -o benchmarks/results/serve-8b.json
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.given_model import given_model
from benchmarks.models import MODELS
from benchmarks.record import write
from executor.api.load import load_model
from executor.model.engine import PAGE_LEN
from executor.model.row_steps import CHUNK
from executor.model.scheduling.scheduler import Scheduler
from ptxgen.commands.options import whole_numbers

TARGET: Final = 0.9
"""Of the scheduler's tokens a second that the server is to have."""
SERVE: Final = "from ptxgen.commands.start import ptxrun; ptxrun()"


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="A GGUF file.")
@click.option("--synthetic", type=click.Choice(sorted(MODELS)), help="A model with random weights and a vocabulary instead.")
@click.option("--device", default="auto")
@click.option("--clients", default="64,256", show_default=True, help="Numbers of clients at once.")
@click.option("--prompt", default=128, show_default=True, help="Tokens of a prompt.")
@click.option("--tokens", default=128, show_default=True, help="Tokens of an answer.")
@click.option("--rounds", default=3, show_default=True, help="Time everything so often, after once for nothing; medians count.")
@click.option("--client-processes", default=max(1, min(8, len(os.sched_getaffinity(0)) // 2)), show_default=True)
@click.option("--precision", type=click.Choice(["accurate", "fast"]), default="accurate", show_default=True)
@click.option("--kv-type", type=click.Choice(["f32", "f16", "q8_0"]), default="f16", show_default=True)
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(
    model: Path | None, synthetic: str | None, device: str, clients: str, prompt: int, tokens: int, rounds: int,
    client_processes: int, precision: str, kv_type: str, commit: str | None, output: Path,
) -> None:  # fmt: skip
    """Time the scheduler and the server, and write the result as JSON."""
    counts = whole_numbers("--clients", clients, "numbers of clients", "64,256", low=1)
    with given_model(model, synthetic) as path:
        context = -(-(prompt + tokens) // PAGE_LEN) * PAGE_LEN
        cache = max(counts) * (context + PAGE_LEN)  # one page more each: who comes later leaves one to all who run
        with load_model(path, device, context=context, precision=precision) as loaded:
            scheduler = loaded.scheduler(
                slots=max(counts), pages=cache // PAGE_LEN, context=context, rows=max(CHUNK, *counts), kv_type=kv_type
            )
            vocab, machine = loaded.spec.vocab, loaded.device.describe()
            lone: dict[int, list[float]] = {}
            for count in counts:
                lone[count] = _scheduled(scheduler, count, vocab, prompt, tokens, rounds)
                click.echo(f"{count} clients: scheduler {statistics.median(lone[count]):.0f} tokens/s")
        words = ["--slots", max(counts), "--context", context, "--cache-tokens", cache, "--precision", precision]
        with _server(path, device, [*words, "--kv-type", kv_type]) as url:
            served = {
                count: [_served(url, count, client_processes, seed, vocab, prompt, tokens) for seed in range(rounds + 1)][1:]
                for count in counts
            }
    results = [_result(count, lone[count], served[count]) for count in counts]
    record = {
        "what": "answers of the server to many clients, streamed, and of the scheduler by itself; tokens of answers a second, "
        "prompts included in the time",
        "model": synthetic or path.name,
        "synthetic_weights": synthetic is not None,
        "precision": precision,
        "kv_type": kv_type,
        "prompt_tokens": prompt,
        "answer_tokens": tokens,
        "client_processes": client_processes,
        "host_cpus": len(os.sched_getaffinity(0)),
        "target": TARGET,
        "results": results,
    }
    write(output, record, machine, commit)
    for result in results:
        click.echo(
            f"{result['clients']} clients: server {result['server']['median']:.0f} tokens/s, scheduler "
            f"{result['scheduler']['median']:.0f} tokens/s: {result['share']:.1%}, target {TARGET:.0%}; first token after "
            f"{result['first_token_seconds']['median']:.2f} s"
        )


def prompts_of(count: int, seed: int, vocab: int, length: int) -> list[list[int]]:
    """Random ones, others in each round, so that no page of an earlier round is found."""
    draw = random.Random(f"{count} {seed}")
    return [[draw.randrange(vocab) for _ in range(length)] for _ in range(count)]


def _result(count: int, lone: Sequence[float], served: Sequence[dict[str, Any]]) -> dict[str, Any]:
    speeds = [round_["tokens"] / round_["seconds"] for round_ in served]
    firsts = sorted(first for round_ in served for first in round_["firsts"])
    return {
        "clients": count,
        "scheduler": _summary(lone),
        "server": _summary(speeds),
        "share": statistics.median(speeds) / statistics.median(lone),
        "first_token_seconds": {"median": statistics.median(firsts), "p95": firsts[math.ceil(0.95 * len(firsts)) - 1]},
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _scheduled(scheduler: Scheduler, count: int, vocab: int, prompt: int, tokens: int, rounds: int) -> list[float]:
    """Tokens a second of each round, the first one left out."""
    speeds = []
    for seed in range(rounds + 1):
        asked = prompts_of(count, seed, vocab, prompt)
        start = time.perf_counter()
        requests = [scheduler.submit(ids, max_tokens=tokens, stop_tokens=()) for ids in asked]
        scheduler.run()
        speeds.append(sum(len(request.tokens) for request in requests) / (time.perf_counter() - start))
    return speeds[1:]


@contextmanager
def _server(model: Path, device: str, words: Sequence[object]) -> Iterator[str]:
    """A server in a process of its own; where it listens."""
    command = [sys.executable, "-c", SERVE, "serve", str(model), "--device", device, "--port", "0", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"listening on http://(\S+): ", line):
                yield found[1]
                break
            click.echo(line, err=True, nl=False)
        else:
            raise click.ClickException(f"the server ended with {process.wait()}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stderr.close()


def _served(url: str, count: int, processes: int, seed: int, vocab: int, prompt: int, tokens: int) -> dict[str, Any]:
    """A round of so many clients: all connect, then all ask at once."""
    asked = prompts_of(count, seed, vocab, prompt)
    shares = [asked[at::processes] for at in range(min(processes, count))]
    command = [sys.executable, "-m", "benchmarks.serve_clients", url, str(tokens)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in shares]
    for process, share in zip(started, shares, strict=True):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(share) + "\n")
        process.stdin.flush()
        process.stdout.readline()  # connected
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [json.loads(process.communicate()[0]) for process in started]
    return {
        "tokens": sum(one["tokens"] for one in found),
        "seconds": max(one["end"] for one in found) - min(one["start"] for one in found),
        "firsts": [first for one in found for first in one["firsts"]],
    }


if __name__ == "__main__":
    main()
