"""Results of benchmarks/gemv.py -> the tuning table of that GPU that is shipped with the package: of what every device uses
anyway, the parameters that leave the bits alone; and the fastest kernels for several rows, from results of kernels that take m
rows and from tables of `ptxrun tune --rows`. What `ptxrun tune` kept of one row, in whole steps, comes before what was the
fastest alone. It measures no time.

cd benchmarks/results
PYTHONPATH=../.. python -m benchmarks.tuning_table gemv-hw-dp4a-h200.json gemm-halves-8b-h200.json gemm-few-rows-8b-h200.json \
    gemm-sequences-8b-h200.json --rows tune-rows-8b-h200.json $(printf -- '--steps %s ' tune-steps-*-h200.json)
PYTHONPATH=../.. python -m benchmarks.tuning_table $(printf -- '--steps %s ' tune-steps-*-h100.json)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from executor.choice.store import load, save, shipped_path
from executor.choice.strategies import DIGITS, ERROR_LIMIT, bit_free, default_strategy
from executor.choice.table import CLOCKS, TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from executor.layers.packed import form_of
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, FORMATS
from ptxgen.kernels.compose import fuse_horizontally
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.known_models import KNOWN_MODELS
from ptxgen.kernels.registry import find

MARGIN: Final = 0.01
"""The defaults stay unless something is faster by more: replays of one chain differ by as much."""
SET: Final = ("row_tiles", "slices")
"""Settings that a kernel for several matrices in one launch has of its own, whatever those for each are."""
IN_STEPS: Final = "the fastest in a step"
STAND_IN: Final = 2
"""Digits whose parameters stand in where those of a precision were not measured."""

Result = Mapping[str, Any]
Shape = tuple[str, int, int, int]
"""A format by its id, k, n, and rows of activations."""


def table(records: Iterable[Mapping[str, Any]]) -> TuningTable:
    """The table of these files, all of one GPU. ArgumentError if they are of several, or have nothing that counts."""
    records = list(records)
    gpus = {_gpu(record["machine"]) for record in records}
    if len(gpus) != 1:
        raise ArgumentError(f"the results are of {len(gpus)} GPUs; a table is of one")
    results = [result | {"versions": _versions(record)} for record in records for result in record["results"]]
    entries = tuple(entry for precision in DIGITS for entry in _entries(precision, results))
    if not entries:
        raise ArgumentError("the results have no kernel that is used by default")
    (gpu,) = gpus
    return TuningTable("results", gpu, entries, shipped=True)


def whole(records: Sequence[Mapping[str, Any]], tuned: Sequence[TuningTable]) -> TuningTable:
    """The table for one row, and what is fastest for several, of results and of tables of `ptxrun tune`. Errors as table; or
    ArgumentError if they are of several GPUs."""
    shipped = table(records)
    if any(one.gpu != shipped.gpu for one in tuned):
        raise ArgumentError(f"the results are of {shipped.gpu}; so must the tables for several rows be")
    timed = (*(entry for one in tuned for entry in one.entries), *with_rows(records))
    return replace(shipped, entries=(*shipped.entries, *several_rows(replace(shipped, entries=timed))))


def with_steps(shipped: TuningTable, kept: Sequence[TuningTable]) -> TuningTable:
    """The table with what these have for one row in the place of its own, as far as that leaves the bits alone: the usual
    kernels. ArgumentError if they are of several GPUs."""
    formats = {format.id: format for format in ALL.values()}
    for one in kept:
        if one.gpu != shipped.gpu:
            raise ArgumentError(f"the results are of {shipped.gpu}; so must be what was kept in steps")
        for entry in one.entries:
            strategy, free = default_strategy(formats[entry.format], entry.precision), bit_free(entry.kernel)
            usual = {**find(strategy.kernel).parameters, **strategy.parameters}
            given = {name: value for name, value in entry.parameters.items() if name not in free}
            alike = entry.kernel == strategy.kernel and {**usual, **given} == usual
            if entry.rows > 1 or not alike or not given.items() >= strategy.parameters.items():
                continue
            parameters = {name: value for name, value in entry.parameters.items() if name in free}
            found = replace(entry, parameters=parameters, error=None, clock=CLOCKS[0], measured="", note=IN_STEPS)
            place = found.precision, found.format, found.k, found.n, found.rows
            elsewhere = [old for old in shipped.entries if (old.precision, old.format, old.k, old.n, old.rows) != place]
            shipped = replace(shipped, entries=(found, *elsewhere))
    return replace(shipped, entries=tuple(sorted(shipped.entries, key=lambda entry: entry.rows > 1)))


def several_rows(measured: TuningTable) -> Iterator[TuningEntry]:
    """Of each shape and number of rows above one, the fastest kernel whose error the precision allows. What was measured for
    more rows does these in no more time. Matrices that a layer may multiply in one launch have the kernel of that launch where
    it is faster than the fastest of each."""
    several = [entry for entry in measured.entries if entry.rows > 1 and entry.n and entry.seconds is not None]
    for precision, limit in ERROR_LIMIT.items():
        allowed = [entry for entry in several if entry.error is not None and entry.error <= limit]
        if not any(entry.precision == precision for entry in allowed):
            continue
        chosen: dict[Shape, TuningEntry] = {}
        for format, k, n, rows in sorted({(entry.format, entry.k, entry.n or 0, entry.rows) for entry in allowed}):
            times = [
                (entry.seconds, entry.rows, number, entry)
                for number, entry in enumerate(allowed)
                if (entry.format, entry.k, entry.n) == (format, k, n) and entry.rows >= rows
            ]
            *_, fastest = min(times, key=lambda one: one[:3])
            note = f"measured with {fastest.rows} rows" if fastest.rows != rows else fastest.note
            chosen[format, k, n, rows] = replace(fastest, precision=precision, rows=rows, note=note)
        yield from _with_joined(chosen, allowed).values()


def _with_joined(chosen: Mapping[Shape, TuningEntry], measured: Sequence[TuningEntry]) -> dict[Shape, TuningEntry]:
    """The same with the kernel of a launch for several matrices where it is faster, in each with the settings that were fastest
    of those that a launch for several changes by itself: other matrices may have the same shape. Each has its share of the
    launch's time, so that what is compared with other kernels of all of them is what they take together."""
    better = dict(chosen)
    for (format, k, n, rows), together in chosen.items():
        seconds = together.seconds or 0.0
        for sizes in {sizes for model in KNOWN_MODELS.values() if model.hidden == k for sizes in model.joined()}:
            apart = [chosen[format, k, size, rows] for size in sizes if (format, k, size, rows) in chosen]
            if sum(sizes) != n or len(apart) < len(sizes) or not _can_join(together, sizes):
                continue
            if seconds < sum(entry.seconds or 0.0 for entry in apart):
                note = f"in one launch for {n} rows of weights"
                for size in sizes:
                    alike = [one for one in measured if (one.n, one.k, one.rows) == (size, k, rows) and _like(one, together)]
                    own = min(alike, key=lambda one: one.seconds or 0.0, default=replace(together, n=size))
                    better[format, k, size, rows] = replace(
                        own, precision=together.precision, note=note,
                        seconds=seconds * size / n, bytes_per_second=together.bytes_per_second,
                    )  # fmt: skip
    return better


def _like(one: TuningEntry, other: TuningEntry) -> bool:
    """Whether these differ in nothing but their shape and what `joined` sets."""
    first, second = ({name: value for name, value in entry.parameters.items() if name not in SET} for entry in (one, other))
    return (one.format, one.kernel, first) == (other.format, other.kernel, second)


def _can_join(entry: TuningEntry, sizes: Sequence[int]) -> bool:
    first, *others = (replace(entry, n=size).make(size, entry.rows) for size in sizes)
    return fuse_horizontally(first, others) is not None


def with_rows(records: Iterable[Mapping[str, Any]]) -> Iterator[TuningEntry]:
    """What these files say of kernels that take several rows at once, for the strictest precision that allows their error."""
    errors: dict[object, float] = {}
    for record in records:
        for result in record["results"]:
            if "m" not in result["parameters"]:
                continue
            kernel = find(result["kernel"]).make(**result["parameters"])
            if not isinstance(kernel, GemvType):
                raise ArgumentError(f"{kernel} multiplies by no weights")
            rounded = (kernel.format, form_of(kernel))
            if rounded not in errors:
                errors[rounded] = max(kernel.accuracy(np.random.default_rng(0)).values(), default=0.0)
            parameters = {name: value for name, value in result["parameters"].items() if name not in ("k", "n", "m")}
            size = {"k": result["parameters"]["k"], "n": result["parameters"]["n"], "rows": result["parameters"]["m"]}
            seconds = _median(result) * 1e-6
            precision = min((limit, one) for one, limit in ERROR_LIMIT.items() if errors[rounded] <= limit)[1]
            yield TuningEntry(
                precision, kernel.format.id, kernel=kernel.name, parameters=parameters, seconds=seconds,
                bytes_per_second=result["weight_bytes"] / seconds, error=errors[rounded], versions=_versions(record), **size,
            )  # fmt: skip


def _entries(precision: str, results: list[dict[str, Any]]) -> Iterator[TuningEntry]:
    for format in FORMATS.values():
        strategy = default_strategy(format, precision)
        usual = strategy.parameters.get("digits")
        digits, note = usual, ""
        of_kernel = [result for result in results if result["kernel"] == strategy.kernel]
        if usual is not None and not any(result["parameters"]["digits"] == usual for result in of_kernel):
            digits, note = STAND_IN, f"with {STAND_IN} digits, not {usual}"
        mine = [result for result in of_kernel if result["parameters"].get("digits") == digits]
        for k, n in sorted({(result["parameters"]["k"], result["parameters"]["n"]) for result in mine}):
            of_shape = [result for result in mine if (result["parameters"]["k"], result["parameters"]["n"]) == (k, n)]
            best = _best(strategy.kernel, of_shape)
            parameters = {name: best["parameters"][name] for name in bit_free(strategy.kernel) if name in best["parameters"]}
            seconds = best["microseconds"]["median"] * 1e-6
            rate = best["weight_bytes"] / seconds
            measured = {"seconds": seconds, "bytes_per_second": rate} if not note else {}
            yield TuningEntry(
                precision, format.id, k, n, strategy.kernel, parameters, **measured, versions=best["versions"], note=note
            )


def _best(kernel: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    defaults = find(kernel).parameters
    free = bit_free(kernel)
    fastest = min(results, key=_median)
    usual = [result for result in results if all(_setting(result, name, defaults) == defaults[name] for name in free)]
    return next((result for result in usual if _median(result) <= (1 + MARGIN) * _median(fastest)), fastest)


def _setting(result: Result, name: str, defaults: Mapping[str, Any]) -> Any:
    """Results from before there was such a setting have its default."""
    return result["parameters"].get(name, defaults[name])


def _median(result: Result) -> float:
    return float(result["microseconds"]["median"])


def _gpu(machine: Mapping[str, Any]) -> GpuModel:
    product = machine.get("product") or re.sub(r"^cuda:\d+ \((.*)\)$", r"\1", machine["name"])
    return GpuModel(product, machine["gpu"], machine["multiprocessors"])


def _versions(record: Mapping[str, Any]) -> str:
    return f"commit {record['commit'][:7]}, {record['machine']['assembler']}"


@click.command()
@click.argument("results", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--rows", "several", multiple=True, type=click.Path(exists=True, path_type=Path), help="A table of ptxrun tune.")
@click.option("--steps", multiple=True, type=click.Path(exists=True, path_type=Path), help="What ptxrun tune kept, of one row.")
def main(results: tuple[Path, ...], several: tuple[Path, ...], steps: tuple[Path, ...]) -> None:
    """Write the shipped table of the GPU that these RESULTS of benchmarks/gemv.py are of; without any, what --steps holds."""
    kept = [load(path) for path in steps]
    if not results and (several or not kept):
        raise click.UsageError("nothing to make a table of; give RESULTS, or --steps alone")
    records = [json.loads(path.read_text()) for path in results]
    shipped = whole(records, [load(path) for path in several]) if records else TuningTable("steps", kept[0].gpu, shipped=True)
    shipped = with_steps(shipped, kept)
    path = shipped_path(shipped.gpu)
    save(path, shipped)
    click.echo(f"{path}: {len(shipped.entries)} entries")


if __name__ == "__main__":
    main()
