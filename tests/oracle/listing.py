"""The launches of a step as lines that are compared and read: what layers do alike stands once.

A line has the operation, the kernel with the parameters that are not its defaults, the launches that it waits for (so many
before it), whether it is dependent, and which buffer each argument is. It ends with a digest of all facts of the launch, of
which the line leaves some out: every parameter, the grid, dtypes and shapes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from executor.launch.recorded import FoldedLaunch, RecordedLaunch


def listing(launches: Sequence[RecordedLaunch]) -> list[str]:
    """Lines of the launches in order. A run of layers, or of launches, that are alike stands once, with how many they are."""
    layers = [
        (layer, tuple(_counted([_line(number, one) for number, one in own])))
        for layer, own in groupby(enumerate(launches), lambda numbered: numbered[1].place.layer)
    ]
    lines: list[str] = []
    for place in _runs(layers):
        numbers, alike = place
        heading = "outside of layers" if numbers[0] is None else f"layers {_named(numbers)}"
        lines += [heading, *(f"  {line}" for line in alike)]
    return lines


def _line(number: int, launch: RecordedLaunch) -> str:
    facts = launch.facts()
    facts["after"] = [number - other for other in facts["after"]]
    del facts["layer"]
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(_of_any_layer(text).encode()).hexdigest()[:8]
    unusual = FoldedLaunch(launch.place.operation, launch.kernel, launch.dependent, 1).parameters
    parameters = ", ".join(f"{name}={value}" for name, value in unusual.items())
    arguments = " ".join(f"{name}={_value(value)}" for name, value in facts["arguments"].items())
    dependent = " dependent" if launch.dependent else ""
    line = (
        f"{launch.place.operation}: {launch.kernel.name}({parameters}) after {_named(facts['after'])}{dependent}; {arguments}"
    )
    return f"{_of_any_layer(line)} #{digest}"


def _value(fact: Any) -> str:
    return fact["buffer"].replace(" ", "_") if isinstance(fact, dict) else str(fact)


def _of_any_layer(text: str) -> str:
    """With the numbers of layers in names of weights and buffers left out."""
    return re.sub(r"(blk\.|layer[ _])\d+", r"\1N", text)


def _counted(lines: list[str]) -> Iterator[str]:
    """Lines one after another that differ in nothing but their edges and digests stand once."""
    for _, alike in groupby(lines, lambda line: re.sub(r" after \S+| #\w+$", "", line)):
        first, *others = alike
        rest = hashlib.sha256("".join(others).encode()).hexdigest()[:8]
        yield f"{first} and {len(others)} like it #{rest}" if others else first


def _runs(layers: Sequence[tuple[int | None, tuple[str, ...]]]) -> Iterator[tuple[list[int | None], tuple[str, ...]]]:
    for alike, own in groupby(layers, lambda layer: layer[1]):
        yield [number for number, _ in own], alike


def _named(numbers: Sequence[int | None]) -> str:
    """As `0-3,6`; `-` for none."""
    known = sorted(number for number in numbers if number is not None)
    runs = [[number for _, number in run] for _, run in groupby(enumerate(known), lambda one: one[1] - one[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "-"
