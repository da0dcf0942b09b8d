"""Which bytes the lanes of a warp ask for together: the text is made to note the addresses of its own weight loads, and run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import FORMATS
from ptxgen.kernels.attention.flash_attention import FlashAttention
from ptxgen.kernels.attention.grouped_attention import GroupedAttention
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.registry import find
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import inputs

SECTOR = 32  # bytes: what a GPU reads at least
LANES = 32
ALIGNED = [format for format in FORMATS.values() if format.block == 1 or format.row_bytes(format.block) % 16 == 0]
"""Formats whose every block can be read by words."""

ADDRESS = r"\[(?P<address>%rd\d+)(?:\+(?P<offset>\d+))?\]"
WEIGHTS = re.compile(rf"ld\.global\.nc\.\S*?(v(?P<vector>[24])\.)?[a-z](?P<bits>\d+) \{{?[^\]]*{ADDRESS};")
"""Through the read-only path."""
VECTORS = re.compile(rf"ld\.global\.v(?P<vector>[24])\.[a-z](?P<bits>\d+) \{{[^\]]*{ADDRESS};")
COPIES = re.compile(rf"cp\.async\.cg\.shared\.global \[[^\]]*\], {ADDRESS}, (?P<bytes>16);")


def noted(kernel: KernelType, loads: re.Pattern[str], given: dict[str, Any]) -> list[tuple[int, NDArray[np.int64]]]:
    """For each of these loads in the text, in turn: the bytes that a lane takes, and where each lane of a first warp took them
    the last time; 0 where none did."""
    widths: list[int] = []

    def noting(load: re.Match[str]) -> str:
        found = load.groupdict()
        address, offset = found["address"], found["offset"]
        widths.append(int(found.get("bytes") or int(found["bits"]) // 8 * int(found["vector"] or 1)))
        slot = 8 * LANES * (len(widths) - 1)
        return f"add.u64 %note1, {address}, {offset or 0};\n    @%first st.global.u64 [%note0+{slot}], %note1;\n    {load[0]}"

    text = loads.sub(noting, emit(kernel, kernel.targets()[0]).text)
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
    notes = np.zeros((len(widths), LANES), np.int64)
    values = [given[name] for name in kernel.signature()]
    emulator.run(text, kernel.name, kernel.launch().grid, kernel.launch().block, [*values, notes], sanitize=False)
    return list(zip(widths, notes, strict=True))


def read_and_asked(width: int, starts: NDArray[np.int64]) -> tuple[int, int]:
    """The bytes of the sectors that a load touches, and those of them that it takes."""
    taken = {int(start) + i for start in starts for i in range(width)}
    return SECTOR * len({byte // SECTOR for byte in taken}), len(taken)


@pytest.mark.parametrize("name", ["vectorized_q4k_gemv", *(f"mwv_{format.id}_gemv" for format in ALIGNED)])
def test_lanes_side_by_side_take_words_side_by_side(name: str) -> None:
    kernel = find(name).make(k=4096, n=1)
    given = inputs(kernel)
    loads = [(width, at - given["w"].ctypes.data) for width, at in noted(kernel, WEIGHTS, given)]
    assert min(width for width, _ in loads) >= 4
    read, asked = np.sum([read_and_asked(*load) for load in loads], axis=0)
    # A header of 16 bytes is in the sector of codes that another load asks for, and codes start in the middle of a sector.
    assert asked / read > 0.6


PAGES: dict[str, Any] = {"page_len": 32, "pages": 1, "slots": 1, "max_len": 32}


@pytest.mark.parametrize(
    ("kernel", "loads", "several"),
    [
        (PagedAttention(rows=1, heads=2, kv_heads=1, head_dim=128, **PAGES, kv_type="f32", splits=1, least=32), VECTORS, 32),
        (PagedAttention(rows=1, heads=2, kv_heads=1, head_dim=64, **PAGES, kv_type="f16", splits=1, least=32), VECTORS, 8),
        (GroupedAttention(True, heads=4, kv_heads=1, head_dim=128, max_len=64, splits=2, least=32, short=32), VECTORS, 32),
        (FlashAttention(rows=32, heads=1, kv_heads=1, head_dim=128, **PAGES, kv_type="f32", tiles=1), COPIES, 8),
        (FlashAttention(rows=32, heads=1, kv_heads=1, head_dim=64, **PAGES, kv_type="f16", tiles=1), COPIES, 2),
    ],
    ids=lambda value: value.name if isinstance(value, KernelType) else "",
)
def test_neighbours_ask_for_each_sector_of_a_cache_once(kernel: KernelType, loads: re.Pattern[str], several: int) -> None:
    given = inputs(kernel)
    caches = {name: given[name] for name in given if name.startswith(("k_cache", "v_cache"))}
    whole = 0
    for width, starts in noted(kernel, loads, given):
        for cache in caches.values():
            of_cache = (cache.ctypes.data <= starts) & (starts < cache.ctypes.data + cache.nbytes)
            if of_cache.all():
                read, asked = read_and_asked(width, starts - cache.ctypes.data)
                assert read == asked
                whole += 1
    assert whole >= several
