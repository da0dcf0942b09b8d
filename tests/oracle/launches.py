"""golden/launches: what a step of the six benchmark models launches, so that no launch changes unseen. A dry run finds it, with
no GPU and no weights (executor/model/recorded_step.py).

`python -m tests.oracle.launches` compares all of it, and shows what differs; `--write` keeps what there is now."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Final
from unittest.mock import patch

import click

from benchmarks.models import MODELS, write_hollow
from benchmarks.one_sequence import SIX
from executor.base.environment import variable
from executor.choice.choice import GpuProfile
from executor.device.dry_run import DryRunDevice
from executor.device.gpu import GpuModel
from executor.gguf.gguf_file import GgufFile
from executor.launch.recorded import RecordedLaunch
from executor.model.model_file import read_spec
from executor.model.recorded_step import DryModel
from tests.oracle.listing import listing
from tests.paths import GOLDEN

FOLDER: Final = GOLDEN / "launches"
LAYERS: Final = 4
"""Of each model: enough for both of the formats that a mix has for a role, and for layers that follow one another."""
CONTEXT: Final = 4096
RANKS: Final = (1, 2)
GPUS: Final = {
    "h200": GpuModel("NVIDIA H200", "sm_90", 132),
    "h100": GpuModel("NVIDIA H100 80GB HBM3", "sm_90", 132),
    "no-table": GpuModel("NVIDIA A100-SXM4-80GB", "sm_80", 108),
}
"""By the name that a golden file has of them; the last has no table of its own."""


@dataclass(frozen=True)
class Subject:
    """A model as so many devices of a kind decode it."""

    model: str
    gpu: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.model}-{self.gpu}-{self.ranks}"

    @property
    def path(self) -> Path:
        """Where its launches are kept."""
        return FOLDER / f"{self}.txt"

    def listing(self, layers: int = LAYERS, steps: int | None = None) -> str:
        """What a token, eight sequences and the first step of a prompt of 513 tokens launch, or the first of these steps."""
        with tempfile.TemporaryDirectory() as folder, nothing_said(folder):
            path = Path(folder) / "model.gguf"
            shape = replace(MODELS[SIX[self.model].shape], layers=layers)
            write_hollow(shape, path, self.model.rpartition("-")[2])
            device = DryRunDevice(GPUS[self.gpu], ranks=self.ranks)
            with GgufFile.open(path) as file:
                model = DryModel(file, read_spec(file), CONTEXT, device, GpuProfile.for_device(device.as_device))
                return "".join(
                    f"{line}\n" for title, launches in islice(_steps(model), steps) for line in (title, *listing(launches))
                )


def nothing_said(folder: str) -> AbstractContextManager[object]:
    """With no variable of the environment and no table that the user measured; the folder is empty."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PTXGEN_")}
    return patch.dict(os.environ, others | {variable("cache_dir").name: folder}, clear=True)


def _steps(model: DryModel) -> Iterator[tuple[str, tuple[RecordedLaunch, ...]]]:
    yield "== a token", model.token()
    yield "== eight sequences", model.sequences(8)
    yield "== 512 tokens of a prompt", model.prompt(513)


SUBJECTS: Final = tuple(Subject(*of) for of in product(SIX, GPUS, RANKS))


def difference(subject: Subject) -> list[str]:
    """What is launched now against what was kept, as a unified diff; empty where it is the same."""
    kept = subject.path.read_text(encoding="utf-8") if subject.path.exists() else ""
    name = f"golden/launches/{subject.path.name}"
    return list(difflib.unified_diff(kept.splitlines(), subject.listing().splitlines(), name, "now", n=1, lineterm=""))


@click.command()
@click.option("--write", is_flag=True, help="Keep what is launched now.")
def main(write: bool) -> None:
    """Compare the launches of all subjects with those that were kept; exit code 1 where they differ."""
    changed = 0
    for subject in SUBJECTS:
        if write:
            FOLDER.mkdir(exist_ok=True)
            subject.path.write_text(subject.listing(), encoding="utf-8")
            continue
        lines = difference(subject)
        changed += bool(lines)
        for line in lines:
            click.echo(line)
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
