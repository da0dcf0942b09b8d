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
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.flash_attention import FlashAttention
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.token_split import LastBlock
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from ptxgen.kernels.persistent.segments import Segments
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
        (ContiguousAttention(True, 4, 1, 128, 64, split=LastBlock(2, 32, 32)), VECTORS, 32),
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


STREAMED = re.compile(rf"(?P<guard>@%p\d+) cp\.async\.cg\.shared\.global\.L2::128B \[[^\]]*\], {ADDRESS}, 16(, %r\d+)?;")
PIECE = 16


def copies_of_each_piece(kernel: KernelType, given: dict[str, Any]) -> dict[str, NDArray[np.uint32]]:
    """How often each 16 bytes of each matrix of a persistent layer are copied: its text is made to count."""
    matrices = {name: value for name, value in given.items() if name.startswith("w")}
    sizes = {name: -(-value.nbytes // PIECE) for name, value in matrices.items()}
    memory = np.zeros(PIECE * (sum(sizes.values()) + 1), np.uint8)
    memory = memory[-memory.ctypes.data % PIECE :]
    placed, first = dict(given), 0
    for name, value in matrices.items():
        placed[name] = memory[PIECE * first :][: value.nbytes].reshape(value.shape)
        placed[name][...] = value
        first += sizes[name]

    def counting(copy: re.Match[str]) -> str:
        guard, address, offset = copy["guard"], copy["address"], copy["offset"] or 0
        return f"""add.u64 %count2, {address}, {offset};
    sub.u64 %count2, %count2, %count1;
    shr.u64 %count2, %count2, 4;
    mad.lo.u64 %count2, %count2, 4, %count0;
    {guard} red.global.add.u32 [%count2], 1;
    {copy[0]}"""

    text, found = STREAMED.subn(counting, emit(kernel, kernel.targets()[0]).text)
    assert found
    head, body = text.split("{\n", 1)
    head = head.replace("\n)", ",\n    .param .u64 counts,\n    .param .u64 memory\n)")
    loads = "    .reg .u64 %count<3>;\n    ld.param.u64 %count0, [counts];\n    ld.param.u64 %count1, [memory];\n"
    counts, launch = np.zeros(sum(sizes.values()), np.uint32), kernel.launch()
    values = [*(placed[name] for name in kernel.signature()), counts, memory]
    emulator.run(
        f"{head}{{\n{loads}{body}", kernel.name, launch.grid, launch.block, values, shared=launch.dynamic_shared,
        sanitize=False, cooperative=True,
    )  # fmt: skip
    ends = np.cumsum(list(sizes.values()))
    return dict(zip(sizes, np.split(counts, ends[:-1]), strict=True))


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0"])
def test_a_persistent_layer_copies_each_weight_once(format: str) -> None:
    """Where rows begin anywhere in 16 bytes, as those of Q6_K, two segments may share these."""
    kernel = PersistentLayer(1536, 512, 2560, format, format, format, blocks=2, rows_per_warp=2)
    lengths = {"wo": 512, "wg": 1536, "wu": 1536, "wd": 2560}
    for name, counts in copies_of_each_piece(kernel, inputs(kernel)).items():
        segments = Segments(FORMATS[format], lengths[name])
        assert counts.min() == 1, name
        assert counts.mean() <= 1 + (0 if segments.aligned else PIECE / segments.last_bytes), name
