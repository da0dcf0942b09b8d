"""The files of benchmarks/results: each a record of one measurement with its machine, commit and command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from executor.choice.store import one_a_line
from ptxgen.kernels.registry import find

SHAPE: Final = ("k", "n", "m", "digits", "parts")
"""Parameters that say what a kernel computes; the others say how."""


def write(path: Path, record: Mapping[str, Any], machine: Mapping[str, Any], commit: str | None) -> None:
    """Write the record, its `results` one a line. commit: what was measured; None: what git has checked out."""
    command = " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    facts = {**record, "machine": machine, "commit": commit or git_commit(), "command": command}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(one_a_line(facts, "results") if "results" in facts else json.dumps(facts, indent=1) + "\n")


def git_commit() -> str:
    """The commit that is checked out, `unknown` outside a repository."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def summary(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a sweep, for each kernel and shape: the fastest result and that of the default parameters, which is all that tables,
    plots and the shipped tuning table need."""
    sweeps: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for result in results:
        key = (result["kernel"], *(result["parameters"].get(name) for name in SHAPE))
        sweeps.setdefault(key, []).append(result)
    return [result for sweep in sweeps.values() for result in sweep if result is _fastest(sweep) or _is_default(result)]


def _fastest(sweep: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return min(sweep, key=lambda result: float(result["microseconds"]["median"]))


def _is_default(result: Mapping[str, Any]) -> bool:
    defaults = find(result["kernel"]).parameters
    return all(value == defaults.get(name) for name, value in result["parameters"].items() if name not in SHAPE)


def machine(record: Mapping[str, Any]) -> str:
    """What a record was measured on, for a document."""
    facts = record["machine"]
    if facts["kind"] != "cuda":
        return str(facts["name"])
    return f"{facts['product']}, driver for CUDA {facts['cuda_driver']}"
