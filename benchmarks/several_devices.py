"""One sequence of a model on one GPU and shared by 2, 4 and 8: greedy, each token read back while the next step runs; whether
tokens and logits have the bits of one GPU; and llama.cpp on as many.

python -m benchmarks.several_devices --models llama-3.1-8b,llama-3.1-70b --devices cuda:0,cuda:1 --distinct 8 \\
    -o benchmarks/results/several-devices-h200x2.json

The result is written after each row, and a way that fails has a row that says why: the others go on, and the command ends
with 1. Ours come first, since a fault of theirs would be the end of all GPUs of this process.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.decode import PROMPT, generated
from benchmarks.models import MODELS, write_q4_k_m
from benchmarks.record import write
from executor.base.environment import PRECISIONS
from executor.device import open_device, open_devices
from executor.measure.llama_cpp import LlamaCpp
from executor.measure.speed import Speed, SpeedCase
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.errors import PtxGenError

CONTEXT: Final = 256
SPLITS: Final = ("layer", "row", "tensor")
"""How llama.cpp shares a model: values of its option -sm."""
GREEDY: Final = Sampler(temperature=0.0)

Row = dict[str, Any]


def _chosen(allowed: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def names(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        found = list(dict.fromkeys(text.split(","))) if text else []
        if unknown := [name for name in found if name not in allowed]:
            raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return found

    return names


@click.command()
@click.option("--models", callback=_chosen(list(MODELS)), default="llama-3.1-8b", show_default=True, metavar="NAME,...")
@click.option("--devices", default="cuda:0,cuda:1", show_default=True, metavar="NAME,...", help="The first 1, 2, 4 and 8.")
@click.option("--precisions", callback=_chosen(PRECISIONS), default=",".join(PRECISIONS), show_default=True, help="None: ''.")
@click.option("--splits", callback=_chosen(SPLITS), default=",".join(SPLITS), show_default=True, help="llama.cpp's; none: ''.")
@click.option("--tokens", default=128, type=click.IntRange(2, CONTEXT - len(PROMPT)), show_default=True, help="Of an answer.")
@click.option("--rounds", default=5, type=click.IntRange(1), show_default=True, help="Answers after one that warms up.")
@click.option("--distinct", type=click.IntRange(1), help="Random tensors of a kind, then the same again (default: all).")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Of files NAME.gguf, which are taken or stay.")
@click.option("--commit", help="What is timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(
    models: list[str], devices: str, precisions: list[str], splits: list[str], tokens: int, rounds: int, distinct: int | None,
    folder: Path | None, commit: str | None, output: Path,
) -> None:  # fmt: skip
    """Time each model on each number of devices, and write one JSON, anew after each row."""
    start, names = time.perf_counter(), devices.split(",")
    record: Row = {
        "what": "greedy decode, one sequence, each token read back while the next step runs, on one GPU and shared by several",
        "x": "times the speed of one GPU by the same program; same_tokens, same_logits: as on one GPU, to the last bit",
        "synthetic_weights": True,
        "distinct": distinct,
        "prompt_tokens": len(PROMPT),
        "tokens": tokens,
        "rounds": rounds,
        "results": [],
    }
    with open_device(names[0]) as opened:
        machine = opened.describe() | {"devices": names}
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as kept:
        for model in models:
            path = Path(kept) / f"{model}.gguf"
            if not path.exists():
                write_q4_k_m(model, path, vocabulary=True, distinct=distinct)
            click.echo(f"{time.perf_counter() - start:.0f} s: {path.name}, {path.stat().st_size / 1e9:.1f} GB")
            for row in compared(path, names, precisions, splits, tokens, rounds):
                record["results"].append({"model": model, "file_bytes": path.stat().st_size} | row)
                record["seconds"] = time.perf_counter() - start
                write(output, record, machine, commit)
                click.echo(f"{record['seconds']:.0f} s: {model}, {_said(row)}")
            if folder is None:
                path.unlink()
    if any("error" in row or not row.get("same_logits", True) for row in record["results"]):
        sys.exit(1)


def compared(
    path: Path, devices: Sequence[str], precisions: Sequence[str], splits: Sequence[str], tokens: int, rounds: int
) -> Iterator[Row]:  # fmt: skip
    """A row for each way of ours on each number of devices, and then for each of llama.cpp's."""
    counts = [count for count in (1, 2, 4, 8) if count <= len(devices)]
    alone: dict[str, Row] = {}
    for count in counts if precisions else ():
        for row in _rows("ptxgen", count, partial(ours, path, devices[:count], precisions, tokens, rounds)):
            yield _beside(alone.setdefault(row["way"], row), row)
    for count in counts if splits else ():
        for way in splits if count > 1 else ("none",):
            for row in _rows("llama.cpp", count, partial(theirs, path, count, way, tokens)):
                yield _beside(alone.setdefault("llama.cpp", row), row)


def ours(path: Path, devices: Sequence[str], precisions: Sequence[str], tokens: int, rounds: int) -> Iterator[Row]:
    """With each precision: what a model that is loaded once does."""
    start = time.perf_counter()
    with open_devices(devices) as device, LanguageModel.load(path, device, context=CONTEXT) as model:
        device.synchronize()
        loaded = time.perf_counter() - start
        profile = model.decoder.profile
        for precision in precisions:
            model.decoder.profile = replace(profile, precision=precision)
            answer = generated(model, tokens, GREEDY).tokens
            logits = model.logits([*PROMPT, *answer[:-1]])
            speeds = Speed(tuple(generated(model, tokens, GREEDY).tokens_per_second for _ in range(rounds)))
            yield {
                "way": precision,
                "tokens_per_second": speeds.facts(),
                "answer": _digest(repr(answer).encode()),
                "logits": _digest(logits.tobytes()),
                "load_seconds": round(loaded, 2),
                "weight_bytes_of_each": model.decoder.weights.nbytes,
            }


def theirs(path: Path, gpus: int, way: str, tokens: int) -> Iterator[Row]:
    """llama-bench on the first GPUs, which share the model in this way."""
    words = ("-dev", "/".join(f"CUDA{gpu}" for gpu in range(gpus)), "-sm", way, "-ts", "/".join("1" * gpus))
    peer = LlamaCpp.find(path, words=words)
    for gpu in range(gpus):
        peer.on(gpu)  # is there
    case = SpeedCase("depth", tokens, 0)
    speed = Speed((peer.speeds([case])[case],))
    yield {"way": f"-sm {way}", "tokens_per_second": speed.facts(), "facts": peer.facts, "commands": list(peer.commands)}


def _rows(by: str, gpus: int, measured: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """What is measured, and a row of its error if there is one."""
    named = {"by": by, "gpus": gpus}
    try:
        for row in measured():
            yield named | row
    except PtxGenError as error:
        yield named | {"way": "", "error": str(error)}


def _beside(one: Mapping[str, Any], row: Row) -> Row:
    """A row with how many times as fast it is as that of one GPU, and whether its bits are the same."""
    if "error" in row or "error" in one or one["gpus"] != 1:
        return row
    same = {f"same_{what}": row[key] == one[key] for what, key in (("tokens", "answer"), ("logits", "logits")) if key in row}
    return row | {"x": row["tokens_per_second"]["median"] / one["tokens_per_second"]["median"]} | same


def _said(row: Mapping[str, Any]) -> str:
    head = f"{row['by']} {row['way']} on {row['gpus']}"
    if "error" in row:
        return f"{head}: {row['error']}"
    speed = row["tokens_per_second"]
    bits = f", same bits: {'yes' if row['same_logits'] and row['same_tokens'] else 'NO'}" if "same_logits" in row else ""
    x = f", x {row['x']:.2f}" if "x" in row else ""
    return f"{head}: {speed['median']:.1f} tok/s ({speed['least']:.1f} to {speed['most']:.1f}){x}{bits}"


def _digest(bytes: bytes) -> str:
    return hashlib.sha256(bytes).hexdigest()


if __name__ == "__main__":
    main()
