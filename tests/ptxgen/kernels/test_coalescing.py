"""Which bytes the lanes of a warp ask for together: the text is made to note the addresses of its own weight loads, and run."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import FORMATS
from ptxgen.kernels.registry import find
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import inputs

SECTOR = 32  # bytes: what a GPU reads at least
LANES = 32
ALIGNED = [format for format in FORMATS.values() if format.block == 1 or format.row_bytes(format.block) % 16 == 0]
"""Formats whose every block can be read by words."""

LOAD = re.compile(r"ld\.global\.nc\.\S*?(v[24]\.)?[a-z](\d+) \{?[^\]]*\[(%rd\d+)(?:\+(\d+))?\];")


def weight_loads(kernel: KernelType) -> list[tuple[int, NDArray[np.int64]]]:
    """For each load of weights in the text, in turn: the bytes that a lane takes, and where in the row each lane of the first
    warp took them the last time. The kernel must have one row, and all its weights go through the read-only path."""
    widths: list[int] = []

    def noting(load: re.Match[str]) -> str:
        vector, bits, address, offset = load.groups()
        widths.append(int(bits) // 8 * int(vector[1] if vector else 1))
        slot = 8 * LANES * (len(widths) - 1)
        return f"add.u64 %note1, {address}, {offset or 0};\n    @%first st.global.u64 [%note0+{slot}], %note1;\n    {load[0]}"

    text = LOAD.sub(noting, emit(kernel).text)
    head, body = text.split("{\n", 1)
    head = head.replace("\n)", ",\n    .param .u64 notes\n)")
    text = f"""{head}{{
    .reg .u64 %note<2>;
    .reg .u32 %lane<2>;
    .reg .pred %first;
    ld.param.u64 %note0, [notes];
    mov.u32 %lane0, %laneid;
    mad.wide.u32 %note0, %lane0, 8, %note0;
    mov.u32 %lane1, %tid.x;
    setp.lt.u32 %first, %lane1, {LANES};
{body}"""
    given = inputs(kernel)
    notes = np.zeros((len(widths), LANES), np.int64)
    assert not emulator.run(text, kernel.name, kernel.launch().grid, kernel.launch().block, [*given.values(), notes])
    return list(zip(widths, notes - given["w"].ctypes.data, strict=True))


@pytest.mark.parametrize("name", ["vectorized_q4k_gemv", *(f"mwv_{format.id}_gemv" for format in ALIGNED)])
def test_lanes_side_by_side_take_words_side_by_side(name: str) -> None:
    loads = weight_loads(find(name).make(k=4096, n=1))
    assert min(width for width, _ in loads) >= 4
    asked, read = 0, 0
    for width, starts in loads:
        taken = {int(start) + i for start in starts for i in range(width)}
        asked += len(taken)
        read += SECTOR * len({byte // SECTOR for byte in taken})
    # A header of 16 bytes is in the sector of codes that another load asks for, and codes start in the middle of a sector.
    assert asked / read > 0.6
