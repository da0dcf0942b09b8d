"""The kernels that may multiply weights of a format by a vector, or by several, at a precision: every registered one that fits,
other packages' too, with a small grid of parameters. Measures no time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from executor.choice.strategies import ERROR_LIMIT, has_form_for_rows, require_precision
from executor.layers.graph.values import Form, form_of
from executor.layers.projection import require_fit
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.compose import for_rows
from ptxgen.kernels.gemm.suited import SUITED
from ptxgen.kernels.quantize.int8_planes import LARGEST
from ptxgen.kernels.registry import KernelEntry, entries

GRID: Final[Mapping[str, tuple[int, ...]]] = {
    "digits": tuple(LARGEST),
    "parts": (1, 2),
    "num_warps": (2, 4, 8),
    "rows_per_warp": (1, 2, 4),
    "rows_per_block": (1, 2, 4),
    "warps": (2, 4),
    "split": (1, 2, 4),
    "tile": (8, 16, 32, 64),
}
"""What is tried of a parameter that a kernel has; all others stay at their defaults. `pdl` does: in a chain of equal kernels it
looks better than between the others of a layer. So do `row_groups` and `stages`, which few products gain by and which would
double what is tried; the rule weight_pipelines finds settings of its own, and compose.between what goes with them."""

OWN: Final[Mapping[str, Mapping[str, tuple[int, ...]]]] = {
    "wgmma_*": {"warpgroups": (2, 3), "columns": (64, 128)},
    "stationary_*": {"split": (8,), "slices": (1, 2)},
    "half_mma_*": {
        "warps": (1,),
        "split": (4, 8),
        "row_tiles": (1, 2),
        "chains": (1, 4),
        "resident_threads": (256, 512),
    },
}
"""The same for kernels with names like these, instead of GRID where both say something."""


@dataclass(frozen=True)
class Candidate:
    """error: what the kernel's own approximations cost, in the worst situation of KernelType.accuracy; 0 where it has none."""

    entry: KernelEntry
    kernel: KernelType
    error: float

    @property
    def parameters(self) -> dict[str, Any]:
        """What a table needs, beside the shape, to make this kernel again."""
        values = {name: value for name, value in self.kernel.parameters().items() if name in self.entry.parameters}
        return {name: value for name, value in values.items() if name not in ("k", "n", "m") and type(value) in (int, bool)}


def candidates(format: Format, k: int, n: int, precision: str, pattern: str = "*", rows: int = 1) -> list[Candidate]:
    """The kernels whose names match the pattern (as file names do) and whose error the precision allows, for n rows of k
    weights. rows: of activations; for several, the kernels that take so many at once, and those for one whose form for several
    is their own, once for each form. ArgumentError for an unknown precision."""
    require_precision(precision)
    limit = ERROR_LIMIT[precision]
    matching = [entry for entry in entries().values() if fnmatchcase(entry.name, pattern)]
    return [candidate for entry in matching for candidate in _kernels(entry, format, k, n, rows) if candidate.error <= limit]


def _kernels(entry: KernelEntry, format: Format, k: int, n: int, rows: int) -> Iterator[Candidate]:
    # A kernel that does not say its format might read another one whose rows have as many bytes.
    if entry.type.family not in ("gemv", "gemm") or entry.fixed.get("format") != format:
        return
    errors: dict[Form | None, float] = {}
    forms: set[KernelType] = set()
    at_once = rows > 1 and "m" in entry.parameters
    for kernel in dict.fromkeys(_made(entry, format, k, n, rows)):
        try:
            require_fit(kernel, format, "a candidate", n=n, k=k, rows=rows)
        except ArgumentError:  # batched
            continue
        if rows > 1 and not at_once:
            if not has_form_for_rows(kernel, alike=True) or for_rows(kernel, 2)[0] in forms:
                continue
            forms.add(for_rows(kernel, 2)[0])
        rounded = form_of(kernel)  # what its error depends on
        if rounded not in errors:
            errors[rounded] = max(kernel.accuracy(np.random.default_rng(0)).values(), default=0.0)
        yield Candidate(entry, kernel, errors[rounded])


def _made(entry: KernelEntry, format: Format, k: int, n: int, rows: int) -> Iterator[KernelType]:
    """The kernels of the grid that there are, and those with settings that their type holds to suit so many rows."""
    at_once = {"m": rows} if rows > 1 and "m" in entry.parameters else {}
    grid = _grid(entry, rows)
    for values in itertools.product(*grid.values()):
        with suppress(ArgumentError):  # of a strategy that cannot do this shape, or beyond what a parameter may be
            yield entry.make(k=k, n=n, **at_once, **dict(zip(grid, values, strict=True)))
    suited = SUITED.get(entry.type)
    rounding = next((name for name in ("parts", "digits") if name in grid), None)
    if suited is not None and at_once and rounding is not None:
        for value in grid[rounding]:
            with suppress(ArgumentError):
                yield suited(format, k=k, n=n, **at_once, **{rounding: value})


def _grid(entry: KernelEntry, rows: int) -> dict[str, tuple[int, ...]]:
    """What is tried of the parameters of a kernel; of tiles of rows of activations those that are less than half empty, and
    the smallest."""
    own = [grid for pattern, grid in OWN.items() if fnmatchcase(entry.name, pattern)]
    grid = {name: values for one in (GRID, *own) for name, values in one.items() if name in entry.parameters}
    for name in {"tile", "columns"} & grid.keys():
        grid[name] = tuple(size for size in grid[name] if size < 2 * rows) or grid[name][:1]
    return grid
