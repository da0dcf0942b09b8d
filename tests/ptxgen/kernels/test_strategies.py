"""Each GEMV strategy on f32 activations is what its name says: the emitted text shows it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import COMMON, FORMATS, Format
from ptxgen.kernels.gemv.chunked_tiled import ChunkedTiledGemv
from ptxgen.kernels.gemv.coalesced import CoalescedGemv
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.gemv.tiled import TiledGemv
from ptxgen.kernels.gemv.vectorized import VectorizedGemv
from ptxgen.kernels.registry import find
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import check, run
from tests.ptxgen.kernels.running import inputs

EVERY_FORMAT = pytest.mark.parametrize("format", FORMATS.values(), ids=str)
EVERY_COMMON_FORMAT = pytest.mark.parametrize("format", COMMON.values(), ids=str)


def text_of(name: str, **shape: Any) -> str:
    return emit(find(name).make(**shape)).text


def weight_loads(text: str) -> list[str]:
    """The type of every load of weights, which alone go through the read-only path."""
    return re.findall(r"ld\.global\.nc\.(\S+) ", text)


def loops(text: str) -> list[str]:
    """The bodies of the loops, up to the branch back."""
    return [match[2] for match in re.finditer(r"^(\$loop_\d+):\n(.*?)bra \1;", text, re.MULTILINE | re.DOTALL)]


def test_basic_reads_a_header_in_every_lane_and_codes_byte_by_byte() -> None:
    text = text_of("q4k_gemv", k=256, n=4)
    assert "shfl.sync.idx" not in text
    assert "ld.global.u8" in text
    assert "shared" not in text


def test_tiled_stages_x_in_shared_memory_once_and_reads_it_nowhere_else() -> None:
    text = text_of("tiled_q4k_gemv", k=4096, n=64)
    # 4096 values in pieces of 4, by 128 threads.
    assert text.count("ld.global.v4.f32") == text.count("st.shared.v4.f32") == 8
    assert text.count("bar.sync") == 1
    assert "ld.global.f32" not in text
    assert "ld.shared.f32" in text


@pytest.mark.parametrize("outputs", [1, 4, 8])
def test_tiled_computes_an_output_a_warp(outputs: int) -> None:
    kernel = find("tiled_q4k_gemv").make(k=256, n=64, outputs_per_block=outputs)
    assert kernel.launch().threads == 32 * outputs
    assert kernel.launch().grid[0] * outputs == 64


def test_tiled_refuses_a_k_that_shared_memory_cannot_hold_and_names_the_kernel_that_takes_it() -> None:
    with pytest.raises(ArgumentError, match=r"k must be 12288 or less.*got 12544; chunked_tiled_q4k_gemv takes any"):
        find("tiled_q4k_gemv").make(k=12544, n=1)


def test_chunked_loops_over_chunks_with_barriers_on_both_sides_of_the_staging() -> None:
    text = text_of("chunked_tiled_q4k_gemv", k=18944, n=6)
    chunks = loops(text)[0]
    order = re.findall(r"bar\.sync|st\.shared|ld\.shared", chunks)
    assert order[0] == "bar.sync"
    assert order.index("st.shared") < order.index("bar.sync", 1) < order.index("ld.shared")
    assert ".shared .align 16 .b8 shared0[16384];" in text


def test_chunked_has_no_branch_around_a_barrier_for_warps_past_the_end() -> None:
    text = text_of("chunked_tiled_q4k_gemv", k=8192, n=5, outputs_per_block=4)
    before_last_barrier = text[: text.rindex("bar.sync")]
    assert not re.search(r"bra \$endif", before_last_barrier)


def test_chunked_gives_the_last_row_when_n_is_not_a_multiple_of_the_outputs_of_a_block() -> None:
    kernel = find("chunked_tiled_q4k_gemv").make(k=4608, n=6, outputs_per_block=4)
    check(kernel, inputs(kernel))


@EVERY_COMMON_FORMAT
def test_chunked_reads_a_whole_chunk_and_the_rest_of_every_format(format: Format) -> None:
    rest = {1: 36, 32: 96}.get(format.block, format.block)  # a whole step and a partial one, where a step is several blocks
    kernel = find(f"chunked_tiled_{format.id}_gemv").make(k=4096 + rest, n=2, outputs_per_block=2)
    assert (kernel.chunks, kernel.rest) == (1, rest)  # type: ignore[attr-defined]
    check(kernel, inputs(kernel))


@EVERY_COMMON_FORMAT
@pytest.mark.parametrize("strategy", ["tiled", "chunked_tiled", "wide", "vectorized"])
def test_a_strategy_that_knows_no_format_is_there_for_every_common_one(strategy: str, format: Format) -> None:
    kernel = find(f"{strategy}_{format.id}_gemv").make(k=format.block * 4, n=3)
    assert isinstance(kernel, GemvType)
    assert kernel.format is format


@pytest.mark.parametrize("format", [f for f in FORMATS.values() if f.block == 1], ids=str)
@pytest.mark.parametrize("strategy", [TiledGemv, ChunkedTiledGemv, VectorizedGemv])
def test_what_takes_four_activations_at_once_refuses_a_k_that_ends_among_them(strategy: type[GemvType], format: Format) -> None:
    with pytest.raises(ArgumentError, match=r"k must be a multiple of 4, 1 or more, got 98"):
        strategy(format, k=98, n=3)


@EVERY_FORMAT
def test_coalesced_is_for_formats_with_the_header_that_its_lanes_load(format: Format) -> None:
    name = f"coalesced_{format.id}_gemv"
    if format.name in ("Q4_K", "Q5_K"):
        assert find(name).make(k=256, n=1).format is format  # type: ignore[attr-defined]
        return
    with pytest.raises(
        ArgumentError, match=rf"{name}: blocks must start with a header of 16 bytes, as those of Q4_K, Q5_K do; {format}"
    ):
        CoalescedGemv(format, k=format.block * 4, n=3)


def test_coalesced_loads_the_headers_of_a_pass_once_and_shuffles_them() -> None:
    text = text_of("coalesced_q4k_gemv", k=2048, n=4)
    assert text.count("ld.global.u32") == 1  # a word a lane: 8 headers of 4 words
    assert text.count("shfl.sync.idx") == 8 * 4
    assert "ld.global.v4" not in text


def test_wide_has_eight_warps_a_row_that_meet_in_shared_memory() -> None:
    kernel = find("wide_q4k_gemv").make(k=4096, n=7)
    assert kernel.launch().threads == 256
    assert kernel.launch().grid == (7, 1, 1)
    text = emit(kernel).text
    assert text.count("bar.sync") == 1
    assert text.count("ld.shared.f32") == 8


def test_vectorized_loads_weights_by_words_and_activations_by_four() -> None:
    text = text_of("vectorized_q4k_gemv", k=4096, n=4)
    assert set(weight_loads(text)) == {"u32", "v4.u32"}
    assert "ld.global.f32" not in text
    assert "ld.global.v4.f32" in text


@pytest.mark.parametrize("name", ["Q4_K", "Q4_1", "F16", "BF16", "F32"])
def test_mwv_loads_weights_by_words_or_more(name: str) -> None:
    loaded = weight_loads(text_of(f"mwv_{FORMATS[name].id}_gemv", k=4096, n=4))
    assert set(loaded) <= {"u32", "v4.u32", "v4.f32"}
    if FORMATS[name].block == 1:
        assert "u32" not in loaded


@EVERY_FORMAT
def test_mwv_takes_the_widest_load_that_the_format_is_aligned_for(format: Format) -> None:
    widths = [width for width in format.widths if 4096 % width == 0]
    assert find(f"mwv_{format.id}_gemv").make(k=4096, n=4).width == max(widths)  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_warps", [1, 2, 4, 8, 16])
def test_mwv_has_as_many_warps_as_asked_for(num_warps: int) -> None:
    kernel = find("mwv_q4k_gemv").make(k=4096, n=8, num_warps=num_warps)
    text = emit(kernel).text
    assert kernel.launch().threads == 32 * num_warps
    assert f".maxntid {32 * num_warps}, 1, 1" in text
    assert text.count("ld.shared.f32") == (num_warps if num_warps > 1 else 0)


@EVERY_FORMAT
def test_batched_loads_weights_once_for_all_rows_of_activations(format: Format) -> None:
    name = f"batched_{format.id}_gemv"
    one, eight = (weight_loads(text_of(name, m=m, k=2048, n=4)) for m in (1, 8))
    assert one == eight


@pytest.mark.parametrize(
    ("format", "m"), [*((format, 3) for format in FORMATS.values()), (FORMATS["Q4_K"], 9)], ids=str
)  # fmt: skip
def test_a_row_of_batched_has_the_bits_of_mwv(format: Format, m: int) -> None:
    shape = {"k": 3 * max(format.block, 32), "n": 3, "num_warps": 2}
    batched, single = find(f"batched_{format.id}_gemv").make(m=m, **shape), find(f"mwv_{format.id}_gemv").make(**shape)
    arguments = inputs(batched)
    together = run(batched, arguments)["y"]
    for row in (0, m - 1):
        alone = run(single, {"y": np.zeros(3, np.float32), "w": arguments["w"], "x": arguments["x"][row]})["y"]
        assert alone.tobytes() == together[row].tobytes()


def test_the_bits_of_mwv_do_not_depend_on_how_many_rows_share_a_block() -> None:
    kernels: list[KernelType] = [find("mwv_q6k_gemv").make(k=1536, n=5, rows_per_block=rows) for rows in (1, 2, 4)]
    arguments = inputs(kernels[0])
    results = [run(kernel, arguments)["y"].tobytes() for kernel in kernels]
    assert results[0] == results[1] == results[2]
