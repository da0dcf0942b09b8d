"""The points of the grids are gguf-py's, and a format that is not common is registered with what the executor needs alone."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ptxgen.formats import COMMON, FORMATS, Format
from ptxgen.formats.grid import Grid
from ptxgen.formats.iq1_s import GRID as IQ1_S
from ptxgen.formats.iq2_s import GRID as IQ2_S
from ptxgen.formats.iq2_xs import GRID as IQ2_XS
from ptxgen.formats.iq2_xxs import GRID as IQ2_XXS
from ptxgen.formats.iq3_s import GRID as IQ3_S
from ptxgen.formats.iq3_xxs import GRID as IQ3_XXS
from ptxgen.kernels.registry import entries

GRIDS = {"IQ3_XXS": IQ3_XXS, "IQ3_S": IQ3_S, "IQ2_XXS": IQ2_XXS, "IQ2_XS": IQ2_XS, "IQ2_S": IQ2_S, "IQ1_S": IQ1_S}


@pytest.mark.parametrize("name", GRIDS)
def test_points_are_those_of_gguf_in_its_order(name: str) -> None:
    grid: Grid = GRIDS[name]
    theirs = getattr(gguf.quants, name)
    theirs.init_grid()
    points = np.array(grid.levels)[np.array(grid.numbers)]
    assert np.array_equal(points, theirs.grid.reshape(theirs.grid_shape))
    nibbles = np.array(grid.table)[:, None] >> 4 * np.arange(grid.count) & 0xF
    assert np.array_equal(nibbles, grid.numbers)


def test_the_executor_has_kernels_of_every_format_that_is_not_common() -> None:
    plain = ["{}_gemv", "mwv_{}_gemv", "batched_{}_gemv", "{}_dequant_f16"]
    names = [*plain, "dp4a_{}_gemv", "hw_dp4a_{}_gemv", "hw_dp4a_{}_gemv_residual", "batched_hw_dp4a_{}_gemv", "mma_{}_gemm"]
    rare = [format for format in FORMATS.values() if format not in COMMON.values()]
    found = {entry.name for entry in entries().values() if entry.fixed.get("format") in rare}
    assert found == {name.format(format.id) for name in names for format in rare}


def test_a_format_that_is_not_common_has_one_sample_shape_of_several_blocks() -> None:
    for entry in entries().values():
        format = entry.fixed.get("format")
        if isinstance(format, Format) and not format.common:
            (kernel,) = entry.cases()
            assert kernel.parameters()["k"] > format.block
