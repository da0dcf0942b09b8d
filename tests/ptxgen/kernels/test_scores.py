"""Windows, factors, caps and ALiBi of scores, in every kernel of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen import emulator
from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.flash_attention import FlashAttention
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.attention.paged_last_block import PagedAttentionLastBlock
from ptxgen.kernels.attention.query_tile import exp2
from ptxgen.kernels.attention.rope_source import RopeFused
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring, capped, slopes
from ptxgen.kernels.attention.token_split import LastBlock, Warps
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.module import module_text
from ptxgen.types import F32
from tests.ptxgen.kernels.checking import check, run

PAGES: dict[str, Any] = {"page_len": 32, "pages": 3, "slots": 1, "max_len": 96, "splits": 2, "least": 32}
LAST = LastBlock(2, 32, 32)

KERNELS: dict[str, Any] = {
    "one block": ContiguousAttention(True, 1, 1, 32, 70),
    "two warps": ContiguousAttention(False, 1, 1, 32, 70, split=Warps(2)),
    "last block": ContiguousAttention(True, 1, 1, 32, 70, split=LAST),
    "RoPE-fused": ContiguousAttention(True, 1, 1, 32, 70, split=LAST, source=RopeFused(True)),
    "pages": PagedAttention(1, 1, 1, 32, **PAGES, kv_type="f32"),
    "pages, last block": PagedAttentionLastBlock(1, 1, 1, 32, **PAGES, kv_type="f16"),
    "reduction": PagedAttentionReduce(1, 1, 32, max_len=96, splits=2, least=32),
    "flash": FlashAttention(20, 1, 1, 32, page_len=32, pages=3, slots=1, max_len=96, tiles=1, kv_type="f16"),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


@every_kernel
@pytest.mark.slow
def test_a_window_as_long_as_the_sequence_changes_no_bit(kernel: Any) -> None:
    arguments = kernel.inputs(np.random.default_rng(5))
    plain = run(kernel, arguments)
    windowed = run(replace(kernel, scores=Scoring(window=kernel.max_len)), arguments)
    assert {name: value.tobytes() for name, value in windowed.items()} == {
        name: value.tobytes() for name, value in plain.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short", "source"), [(32, RopeFused(True)), (64, RopeFused(False, bias=True))], ids=["in parts", "by one block"]
)
def test_a_rope_fused_token_sees_its_window_with_capped_scores(short: int, source: RopeFused) -> None:
    split, scores = LastBlock(2, 32, short), Scoring(window=50, softcap=5.0, scale=0.3)
    planes = Int8PlanesOutput(2)
    kernel = ContiguousAttention(True, 1, 1, 64, 100, split=split, source=source, scores=scores, output=planes)
    check(kernel, kernel.inputs(np.random.default_rng(6)))


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "window"), [("pages, last block", 17), ("pages, last block", 18), ("flash", 7)])
def test_a_window_leaves_freed_pages_alone(kernel: str, window: int) -> None:
    """What is before the window stands in no page any more."""
    windowed = replace(KERNELS[kernel], scores=Scoring(window=window))
    rng = np.random.default_rng(7)
    arguments = windowed.inputs(rng)
    arguments["position"][:] = np.arange(80, 80 + windowed.rows) - windowed.rows // 2
    arguments["tables"][0] = (2**32 - 1, 1 if window > 17 or windowed.rows > 1 else 2**32 - 1, 2)
    arguments |= {name: rng.normal(size=arguments[name].shape).astype(np.float16) for name in ("k_cache", "v_cache")}
    if kernel == "flash":
        arguments["tiles"][:] = (0, windowed.rows)
    assert (check(windowed, arguments)["out"] != 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("heads", [3, 8])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reduction"])
def test_alibi_takes_off_a_head_s_slope_times_the_distance(kernel: str, heads: int) -> None:
    biased = replace(KERNELS[kernel], heads=heads, scores=Scoring(alibi=8.0))
    check(biased, biased.inputs(np.random.default_rng(8)))


def test_slopes_are_those_of_the_paper() -> None:
    """For heads that are no power of two: those of the next smaller one, then every other one of the next larger one."""
    assert slopes(8, 8.0).tolist() == [2.0**-exponent for exponent in range(1, 9)]
    assert slopes(11, 8.0).tolist() == [*slopes(8, 8.0), *slopes(16, 8.0)[:6:2]]


@pytest.mark.slow
@pytest.mark.parametrize(("exponential", "unit"), [(mathlib.exp, 1.0), (exp2, np.log2(np.e))], ids=["e", "2"])
def test_a_cap_is_within_8_units(exponential: Any, unit: float) -> None:
    threads, blocks, cap = 256, 32, 50.0
    x = np.random.default_rng(9).normal(0.0, 2.0, threads * blocks).astype(np.float32)
    x[:6] = 0.0, 1e30, -1e30, np.inf, -np.inf, np.nan
    k = KernelBuilder("probe", {"x": read(F32, x.size), "y": write(F32, x.size)}, LaunchConfig(blocks, threads), Target(80))
    i = k.ctaid.x * threads + k.tid.x
    k.store(k.arg.y[i], capped(k, k.load(k.arg.x[i]), cap, exponential))
    y = np.zeros_like(x)
    emulator.run(module_text([k.finish()], Target(80)), "probe", blocks, threads, [x, y], sanitize=False)
    right = cap * np.tanh(x[6:].astype(np.float64) / 2 / unit)
    assert np.max(np.abs(y[6:] - right)) < 8 * cap * 2.0**-24
    assert y[:5].tolist() == [0.0, cap, -cap, cap, -cap]
    assert np.isnan(y[5])


@every_kernel
def test_scores_are_shown_where_they_are_not_the_usual_ones(kernel: Any) -> None:
    assert not kernel.parameters().keys() & {"window", "softcap", "scale", "alibi"}
    other = replace(kernel, scores=Scoring(window=7, softcap=50.0))
    assert other.parameters() == {**kernel.parameters(), "window": 7, "softcap": 50.0}
    shape = {name: value for name, value in other.parameters().items() if name not in ("bias", "normed", "neox")}
    assert find(kernel.name).make(**shape) == other


@every_kernel
def test_the_work_is_that_of_the_window(kernel: Any) -> None:
    whole, part = (replace(kernel, scores=Scoring(window=window)).work() for window in (96, 8))
    assert part.flops < whole.flops
    assert part.bytes < whole.bytes


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": 2.5},
        {"softcap": -1.0},
        {"softcap": 1e-60},
        {"alibi": -1.0},
        {"scale": 0.0},
        {"scale": float("inf")},
    ],
    ids=str,
)
def test_impossible_scores_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"incremental_attention_indirect.*{next(iter(wrong))}"):
        ContiguousAttention(True, 2, 1, 64, 70, scores=Scoring(**wrong))


def test_a_window_is_what_the_newest_position_sees() -> None:
    assert [Scoring(window=32).first(length) for length in (1, 32, 33, 100)] == [0, 0, 1, 68]
    assert [Scoring(window=32).tile(length) for length in (33, 100)] == [0, 64]
    assert PLAIN_SCORES.first(100) == 0
