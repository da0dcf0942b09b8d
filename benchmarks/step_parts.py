"""Where the time of a step of rows goes: the whole step as it runs, and the launches of each operation, all layers' one after
another, as a graph of their own.

python -m benchmarks.step_parts --file model.gguf --rows 1,8,32,512 -o benchmarks/results/step-parts-8b-h200.json

Rows of several sequences each decode at position --depth; more than MOST_SEQUENCES are a prompt. The parts add up to more than
the step where it runs some of them side by side, and to less where one waits for another that is not of its operation.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.record import write
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.launch.launch import Plan
from executor.measure.timing import chain_seconds
from executor.model.engine import PAGE_LEN, Engine
from executor.model.generation import LanguageModel
from executor.model.step import Row

MOST_SEQUENCES: Final = 64
"""Rows above are those of one prompt."""
DECIMALS: Final = 3


@click.command()
@click.option("--file", "path", required=True, type=click.Path(path_type=Path, exists=True), help="A GGUF model.")
@click.option("--rows", default="1,8,32,512", help="Rows of a step, by commas.")
@click.option("--depth", default=128, help="Positions before the rows that decode.")
@click.option("--precision", default="accurate")
@click.option("--kv-type", default="f32")
@click.option("--runs", default=9, help="Replays of each graph.")
@click.option("--device", "where", default="cuda:0")
@click.option("--commit", help="What was timed; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="A JSON file for the results.")
def main(
    path: Path, rows: str, depth: int, precision: str, kv_type: str, runs: int, where: str, commit: str | None,
    output: Path | None,
) -> None:  # fmt: skip
    """Time a step of each number of rows and its parts; print tables and write JSON."""
    results: list[dict[str, Any]] = []
    counts = [int(count) for count in rows.split(",")]
    sequences = max((count for count in counts if count <= MOST_SEQUENCES), default=1)
    prompt = max((count for count in counts if count > MOST_SEQUENCES), default=0)
    with open_device(where) as device:
        profile = replace(GpuProfile.for_device(device), precision=precision)
        context = -(-max(depth + 1, prompt) // PAGE_LEN) * PAGE_LEN
        with LanguageModel.load(path, device, context=context, profile=profile) as model:
            engine = model.engine(slots=sequences, rows=max(counts), kv_type=kv_type, context=context)
            each = engine.pages // sequences
            for slot in range(sequences):
                engine.set_table(slot, range(slot * each, (slot + 1) * each))
            for count in counts:
                found = parts(engine, count, depth, runs)
                results += found
                click.echo(f"{count} rows, us:")
                for one in found:
                    click.echo(
                        f"  {one['microseconds']:9.1f}  {one['launches']:4}  {one['operation']}  {', '.join(one['kernels'])}"
                    )
        if output is not None:
            record = {"what": "steps of rows, whole and in parts", "model": path.stem, "precision": precision, "depth": depth}
            write(output, {**record, "kv_type": kv_type, "results": results}, device.describe(), commit)


def parts(engine: Engine, count: int, depth: int, runs: int) -> list[dict[str, Any]]:
    """What a step of so many rows takes, and each of its operations, the longest first."""
    engine.step(step_rows(count, depth))
    assert engine.steps.replayed is not None
    plans = engine.steps.replayed.plans
    by_operation: dict[str, list[Plan]] = {}
    for plan in plans:
        by_operation.setdefault(plan.place.operation, []).append(plan)
    whole = _timed(engine, count, "step", plans, runs)
    of_each = [_timed(engine, count, operation, some, runs) for operation, some in by_operation.items()]
    return [whole, *sorted(of_each, key=lambda one: -float(one["microseconds"]))]


def step_rows(count: int, depth: int) -> list[Row]:
    """A row of each of so many sequences, or if they are more than MOST_SEQUENCES the start of one sequence."""
    if count <= MOST_SEQUENCES:
        return [Row(slot, 1 + slot, depth, True) for slot in range(count)]
    return [Row(0, 1 + at % 997, at, at == count - 1) for at in range(count)]


def _timed(engine: Engine, count: int, operation: str, plans: Sequence[Plan], runs: int) -> dict[str, Any]:
    seconds = statistics.median(chain_seconds(engine.device, plans, runs)) * len(plans)
    names = list(dict.fromkeys(plan.kernel.name for plan in plans)) if operation != "step" else []
    return {
        "rows": count, "operation": operation, "launches": len(plans), "microseconds": round(seconds * 1e6, DECIMALS),
        "kernels": names,
    }  # fmt: skip


if __name__ == "__main__":
    main()
