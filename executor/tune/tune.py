"""Measures candidates on this device, each alone, one after another, and saves each result at once, so that an interrupted run
goes on where it stopped. Which of them a table gets is keep.py's business."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from executor.base.errors import DeviceFailed, SanitizerError
from executor.choice.store import PRIVATE, add, load_for
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.layers.batched import launched
from executor.measure.timing import FreshWeights, array_argument, fresh_weights, time_gemv
from executor.tune.candidates import Candidate, candidates
from ptxgen import __version__
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.files import make_folder
from ptxgen.formats import Format

RUNS: Final = 9
"""Replays of a chain, of which the median counts."""

Shape = tuple[Format, int, int]
"""A format, k and n."""
Progress = Callable[[int, int], None]
"""Called with how many candidates are done, and how many there are."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tuned:
    """table: old and new measurements; measured: how many candidates this run measured, known: how many were there already;
    left_out: what could not be measured, and why."""

    table: TuningTable
    measured: int = 0
    known: int = 0
    left_out: tuple[tuple[str, str], ...] = field(default=())


def tune(
    device: Device,
    shapes: Sequence[Shape],
    precision: str,
    path: Path,
    *,
    rows: Sequence[int] = (1,),
    pattern: str = "*",
    again: bool = False,
    runs: int = RUNS,
    progress: Progress | None = None,
) -> Tuned:
    """Measure every candidate for every shape and each of these numbers of rows of activations that the measurements in `path`
    do not have yet from the same versions, and with `again` those, too. Each result is saved at once.

    Raises ArgumentError for an unknown precision, a pattern that no kernel matches, or a table of another GPU; DeviceError for
    a fault. A candidate that is wrong, does not load or does not fit is left out, with the reason."""
    gpu = GpuModel.of(device)
    make_folder(path.parent, PRIVATE)  # before anything is measured
    versions = f"ptxgen {__version__}, {device.build}"
    table = load_for(path, gpu) if os.path.exists(path) else TuningTable(str(path), gpu)
    measured = set() if again else {entry.same for entry in table.entries if entry.versions == versions}
    work = [
        [
            (candidate, _entry(shape, precision, candidate, versions, m))
            for m in rows
            for candidate in candidates(*shape, precision, pattern, m)
        ]
        for shape in shapes
    ]
    total = sum(len(pairs) for pairs in work)
    if not total:
        raise ArgumentError(f"no kernel with a name like {pattern!r} multiplies any of these matrices at precision {precision}")
    report = progress or (lambda done, total: None)
    done = skipped = 0
    left_out: list[tuple[str, str]] = []
    with closing(Modules(device)) as modules:
        launcher = Launcher(device, modules)
        for pairs in work:
            new = [(candidate, entry) for candidate, entry in pairs if entry.same not in measured]
            skipped += len(pairs) - len(new)
            done += len(pairs) - len(new)
            report(done, total)
            if not new:
                continue
            forms = [form for candidate, entry in new for form, _ in launched(candidate.kernel, entry.rows)]
            try:
                modules.preload(forms)  # compiled side by side
            except (DeviceFailed, SanitizerError):
                raise
            except PtxGenError as error:  # told of the candidate when its turn comes
                _log.debug("not all candidates could be loaded at once: %s", error)
            with fresh_weights(device, new[0][0].kernel) as weights:
                for candidate, entry in new:
                    try:
                        result = _measured(launcher, candidate, entry, weights, runs)
                    except (DeviceFailed, SanitizerError):
                        raise
                    except PtxGenError as error:
                        _log.info("%s is left out: %s", candidate.kernel, error)
                        left_out.append((str(candidate.kernel), str(error)))
                    else:
                        table = add(path, gpu, result)
                    done += 1
                    report(done, total)
    return Tuned(table, total - skipped - len(left_out), skipped, tuple(left_out))


def winners(
    table: TuningTable, shapes: Iterable[Shape], precision: str, rows: Sequence[int] = (1,)
) -> list[tuple[Shape, TuningEntry]]:
    """The fastest entry for each shape and each of these numbers of rows of activations that has one."""
    found = ((shape, table.fastest(precision, *shape, m)) for shape in shapes for m in rows)
    return [(shape, entry) for shape, entry in found if entry is not None]


def _entry(shape: Shape, precision: str, candidate: Candidate, versions: str, rows: int) -> TuningEntry:
    format, k, n = shape
    return TuningEntry(precision, format.id, k, n, candidate.entry.name, candidate.parameters, versions=versions, rows=rows)


def _measured(launcher: Launcher, candidate: Candidate, entry: TuningEntry, weights: FreshWeights, runs: int) -> TuningEntry:
    times = [(count, time_gemv(launcher, form, weights, runs)) for form, count in launched(candidate.kernel, entry.rows)]
    seconds = sum(count * time.median for count, time in times)
    return replace(
        entry,
        seconds=seconds,
        bytes_per_second=array_argument(candidate.kernel, "w").nbytes / seconds,
        error=max(candidate.error, *(time.error for _, time in times)),
        clock="device" if launcher.device.kind == "cuda" else "host",
        measured=datetime.date.today().isoformat(),
    )
