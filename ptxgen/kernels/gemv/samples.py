"""Sample shapes of GEMVs on int8 planes: settings that many have, and those of the kernel without other parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ptxgen.formats import Format

NARROW: Final[Mapping[str, Any]] = {"num_warps": 2, "rows_per_warp": 1, "ahead": 3, "resident_threads": 256}
"""Small blocks of threads."""


def of_one_matrix(format: Format) -> Iterator[dict[str, Any]]:
    """Sample parameters of the kernel for one matrix that stores its sums, beside those of every GEMV on int8 planes."""
    two_rows, in_row_groups = {**NARROW, "rows_per_warp": 2}, {**NARROW, "row_groups": 4}
    if format.name == "Q4_K":
        yield {"k": 28672, "n": 2, "rows_per_warp": 1}  # more than fits shared memory at once
        yield {"k": 4096, "n": 5, "digits": 3, "normed": True, **NARROW}
        yield {"k": 1024, "n": 27, "digits": 3, **two_rows}  # two rows side by side
        yield {"k": 4096, "n": 37, "digits": 3, "normed": True, **in_row_groups}  # the last warp has one new row
        yield {"k": 1024, "n": 53, "digits": 3, **in_row_groups}
        yield {"k": 3584, "n": 13, "digits": 3, "normed": True, "stages": 2, **NARROW}  # weights copied ahead
        yield {"k": 4096, "n": 37, "digits": 3, "stages": 3, **in_row_groups}
        yield {"k": 4096, "n": 5, "digits": 3, "stages": 3, "row_groups": 2, "holds_next": True, **NARROW}
        yield {"k": 18944, "n": 5, "digits": 3, "stages": 2, **NARROW}  # a loop
        yield {"k": 4096, "n": 5, "digits": 3, "normed": True, "row_parts": 2, "stages": 2, **NARROW}
    if format.name == "Q6_K":
        yield {"k": 896 * 2, "n": 3, "digits": 3, "normed": True, **NARROW}
    if format.name == "Q8_0_ALIGNED":
        yield {"k": 3584, "n": 5, "digits": 2, "row_parts": 4, **NARROW}
        yield {"k": 4864, "n": 5, "digits": 3, "stages": 2, "row_groups": 2, **two_rows}
    if format.name == "Q3_K":
        yield {"k": 4864, "n": 5, "digits": 3, "num_warps": 2}  # a loop, of one chunk
