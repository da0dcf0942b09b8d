"""hw_dp4a whose weights are copied ahead into pipelines in shared memory: the bits of loads into registers, and what is
refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import PIPELINE_SHARED
from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import add_residual, between, defer_norm, fuse_horizontally, fuse_swiglu, pipeline_weights
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.suited import late_from
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import emulate, inputs

GROUPS = {"out_digits": 3, "num_warps": 4, "n": 96}
SHAPES: list[tuple[str, dict[str, Any], list[dict[str, int]]]] = [
    ("hw_dp4a_q4k_gemv", {"k": 4096, "n": 37, "normed": True}, [{"stages": 1}, {"stages": 3}]),
    (
        "hw_dp4a_q4k_gemv",
        {"k": 4096, "n": 37},
        [{"stages": 2, "row_groups": 4}, {"stages": 5, "row_groups": 8, "holds_next": True}],
    ),
    ("hw_dp4a_q4k_gemv", {"k": 1024, "n": 53}, [{"stages": 2}, {"stages": 2, "row_groups": 8}, {"stages": 3, "row_groups": 4}]),
    ("hw_dp4a_q4k_gemv", {"k": 1536, "n": 53}, [{"stages": 2}, {"stages": 3, "row_groups": 4}]),  # a partial step alone
    ("hw_dp4a_q4k_gemv_residual", {"k": 3584, "n": 67}, [{"stages": 2}, {"stages": 3, "row_groups": 4}]),
    (
        "hw_dp4a_q4k_gemv_residual_normed",
        {"k": 18944, **GROUPS},  # a loop
        [{"stages": 2, "rows_per_warp": 1}, {"stages": 3, "rows_per_warp": 1, "holds_next": True}],
    ),
    ("hw_dp4a_q6k_aligned_gemv", {"k": 1536, "n": 67}, [{"stages": 2}, {"stages": 3, "row_groups": 4}]),
    ("hw_dp4a_q5k_gemv", {"k": 2048, "n": 19, "digits": 1}, [{"stages": 2, "row_groups": 2}]),
    ("hw_dp4a_q8_0_gemv", {"k": 4096, "n": 19}, [{"stages": 2}, {"stages": 3, "row_groups": 4}]),
    ("hw_dp4a_q8_0_aligned_gemv", {"k": 14336, "n": 5}, [{"stages": 3, "row_groups": 2, "rows_per_warp": 1}]),
    # so many blocks that the last ones come late
    ("hw_dp4a_q4k_gemv_residual", {"k": 4096, "n": 101, "num_warps": 1, "rows_per_warp": 1}, [{"stages": 2}]),
    ("hw_dp4a_q8_0_gemv_residual", {"k": 4864, "n": 103, "num_warps": 1, "rows_per_warp": 1}, [{"stages": 3}]),
    ("gated_hw_dp4a_q4k_gemv", {"k": 2048, **GROUPS, "row_groups": 8}, [{"stages": 2}, {"stages": 3, "row_groups": 4}]),
    (
        "gated_hw_dp4a_q4k_gemv",
        {"k": 2048, **GROUPS},
        [{"stages": 2, "row_groups": 7}, {"stages": 2, "row_groups": 5, "num_warps": 3}],
    ),
    ("joined_hw_dp4a_q4k_gemv", {"k": 2048, "n": 67, "n2": 33, "n3": 16}, [{"stages": 2}, {"stages": 3, "row_groups": 8}]),
    (
        "mixed_hw_dp4a_q4k_q6k_aligned_gemv",
        {"k": 1536, "n": 67, "n2": 33, "n3": 16, "normed": True},
        [{"stages": 2}, {"stages": 2, "row_groups": 4, "holds_next": True}],
    ),
]


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    SHAPES,
    ids=[f"{name}-{shape['k']}-{number}" for number, (name, shape, _) in enumerate(SHAPES)],
)
def test_a_pipeline_changes_no_bit(name: str, shape: dict[str, Any], settings: list[dict[str, int]]) -> None:
    plain = find(name).make(**{"digits": 3, "num_warps": 2, **shape})
    arguments = inputs(plain)
    expected, _ = emulate(plain, arguments, sanitize=False)
    for one in settings:
        kernel = replace(plain, **one)
        results, findings = emulate(
            kernel, arguments | {name: np.zeros(shape["n"] // 32, np.uint32) for name in kernel.scratch}
        )
        assert not findings
        assert all(results[name].tobytes() == expected[name].tobytes() for name in expected), one


def test_the_first_weights_are_asked_for_before_the_wait_and_all_by_one_lane() -> None:
    lines = emit(
        find("hw_dp4a_q4k_gemv").make(k=4096, n=4096, digits=3, stages=2), Target(90), dependent=True
    ).text.splitlines()
    copies = [i for i, line in enumerate(lines) if "cp.async.bulk" in line]
    waits = [i for i, line in enumerate(lines) if "griddepcontrol.wait" in line]
    assert len(copies) == 2 * 2  # two parts of two rows
    assert len(waits) == 1
    assert copies[-1] < waits[0] < next(i for i, line in enumerate(lines) if "ld.global" in line)
    (fence,) = (i for i, line in enumerate(lines) if "fence.mbarrier_init" in line)  # which no emulator misses
    assert max(i for i, line in enumerate(lines) if "mbarrier.init.shared" in line) < fence < copies[0]


def test_gate_and_up_ask_for_a_stage_when_the_one_before_has_come() -> None:
    kernel = find("gated_hw_dp4a_q4k_gemv").make(k=2048, n=96, digits=3, out_digits=3, num_warps=4, row_groups=8, stages=3)
    lines = emit(kernel, Target(90), dependent=True).text.splitlines()
    words = ("mbarrier.init.shared", "cp.async.bulk", "mbarrier.try_wait", "bar.warp.sync", "griddepcontrol.wait")
    found = [word for line in lines for word in words if word in line]
    slot, waited = ["cp.async.bulk"] * 2, ["mbarrier.try_wait"]
    before = ["mbarrier.init.shared"] * 3 + slot + ["bar.warp.sync"] + (waited + slot) * 2 + ["griddepcontrol.wait"]
    assert found[: len(before)] == before


def test_blocks_that_come_late_ask_for_the_first_stage_and_behind_the_activations_for_the_others() -> None:
    kernel = find("hw_dp4a_q4k_gemv_residual").make(k=4096, n=101, digits=3, num_warps=1, rows_per_warp=1, stages=2)
    assert kernel.launch().grid[0] > late_from()
    before, behind = emit(kernel, Target(90), dependent=True).text.split("griddepcontrol.wait")
    staging, _ = behind.split("bar.sync", 1)
    bound = f", {late_from()};"
    first, at_once, late = (text.index("cp.async.bulk") for text in (before, before[before.index(bound) :], staging))
    assert (before.count("cp.async.bulk"), staging.count("cp.async.bulk")) == (2, 1)
    assert first < before.index(bound) < before.index(bound) + at_once
    assert staging.index("ld.global") < late < staging.index("st.shared")
    few = replace(kernel, n=late_from())  # type: ignore[call-arg]
    before, behind = emit(few, Target(90), dependent=True).text.split("griddepcontrol.wait")
    assert (before.count("cp.async.bulk"), behind.count("cp.async.bulk")) == (2, 0)
    assert bound not in before


@pytest.mark.parametrize("k", [4096, 14336, 18944])
def test_a_slot_is_read_before_it_is_filled_again_and_filled_before_what_was_read_is_multiplied(k: int) -> None:
    """In the text of a part of a row: all loads of weights, a copy, and then all products."""
    format = "q8_0_aligned"
    kernel = replace(plain(format, k, 64), rows_per_warp=1, row_groups=4, stages=2)
    text = emit(kernel, Target(90)).text
    sums = text[text.index("bar.sync") :]  # behind the staging
    copy, product = sums.index("cp.async.bulk"), sums.index("dp4a")
    part = sums[: sums.index("mbarrier.try_wait", product)] if "mbarrier.try_wait" in sums[product:] else sums
    weights = [match.start() for match in re.finditer(r"ld\.shared\.v4\.u32", sums[:copy])]
    steps = kernel.blocks[0].pipeline_layout.steps
    assert len(weights) == steps
    assert weights[-1] < copy < product
    assert part.count("cp.async.bulk") == 1
    assert weights[-1] < sums.index("bar.warp.sync", weights[-1]) < sums.rindex("fence.proxy.async.shared::cta", 0, copy)


def test_no_refill_waits_for_loads_that_the_epilogue_needs() -> None:
    """A proxy fence waits for what was loaded before it."""
    kernel = find("hw_dp4a_q4k_gemv_residual_normed").make(k=4864, rows_per_warp=1, stages=2, digits=3, **GROUPS)
    sums = emit(kernel, Target(90)).text.split("bar.sync", 1)[1]
    assert sums.count("fence.proxy.async") == 1  # three parts, two stages
    assert sums.index("fence.proxy.async") < sums.index("ld.global")


def test_the_next_launch_starts_at_once_or_when_the_sums_are_there() -> None:
    kernel = replace(plain("q4k", 14336, 4096), num_warps=16, stages=3)
    for holds in (False, True):
        text = emit(replace(kernel, holds_next=holds), Target(90), dependent=True).text
        starts, waits = text.index("griddepcontrol.launch_dependents"), text.index("griddepcontrol.wait")
        assert text.count("griddepcontrol.launch_dependents") == 1
        assert (starts < text.index("cp.async.bulk"), starts > text.rindex("dp4a") > waits) == (not holds, holds)


def test_what_asks_for_much_shared_memory_holds_back_a_launch_without_a_pipeline() -> None:
    def pipelined(kernel: KernelType | None) -> KernelType:
        assert kernel is not None
        return pipeline_weights(kernel) or kernel

    last = pipelined(add_residual(plain("q6k_aligned", 14336, 4096)))
    down = pipelined(defer_norm(plain("q4k", 14336, 4096), 3))
    projections = pipelined(fuse_horizontally(plain("q4k", 4096, 4096), [plain("q4k", 4096, 1024)] * 2))
    norm = RmsNorm(hidden=4096, digits=3)
    output, gate = (plain("q8_0_aligned", 4096, n) for n in (4096, 14336))
    found = [
        between(one, one, behind).parameters()["holds_next"]
        for one, behind in (
            (last, norm),
            (down, None),  # nobody knows
            (pipelined(defer_norm(output, 3)), pipelined(fuse_swiglu(gate, gate, 3))),
            (down, projections),
            (pipelined(defer_norm(plain("q4k", 4096, 4096), 3)), norm),  # 89 KB
        )
    ]
    assert found == [True] * 3 + [False] * 2
    assert between(norm, last, last) is norm


def test_what_leaves_shared_memory_leaves_registers_for_a_block_of_the_next() -> None:
    output = defer_norm(plain("q4k", 4096, 4096), 3)
    down = defer_norm(plain("q4k", 14336, 4096), 3)
    found = []
    for kernel in (output, down):
        pipelined = kernel and pipeline_weights(kernel)
        assert pipelined is not None
        text = emit(pipelined, Target(90)).text
        found.append((pipelined.launch().most_registers, ".maxnreg 80\n" in text, assemble(text, Target(90)).registers <= 80))
    assert found == [(80, True, True), (0, False, False)]


def test_kernels_with_a_pipeline_alone_ask_for_room() -> None:
    kernel = plain("q4k", 4096, 4096)
    assert (kernel.launch().shared_room, replace(kernel, stages=2).launch().shared_room) == (0, 132 * 1024)


def chosen(kernel: KernelType) -> dict[str, Any] | None:
    pipelined = pipeline_weights(kernel)
    names = ("num_warps", "rows_per_warp", "row_groups", "stages", "last_rows_per_warp")
    return None if pipelined is None else {name: value for name, value in pipelined.parameters().items() if name in names}


def plain(format: str, k: int, n: int, digits: int = 3) -> HwDp4aGemv:
    kernel = find(f"hw_dp4a_{format}_gemv").make(k=k, n=n, digits=digits)
    assert isinstance(kernel, HwDp4aGemv)
    return kernel


@pytest.mark.parametrize(
    ("k", "rows", "expected"),
    [
        (4096, (4096, 1024, 1024), {"num_warps": 8, "rows_per_warp": 3, "row_groups": 1, "stages": 2}),
        (2048, (2048, 512, 512), None),  # too few weights
        (1536, (8960, 8960), None),  # more blocks than are there at once
    ],
)
def test_fused_products_have_a_pipeline_where_weights_are_many_and_all_blocks_are_there_at_once(
    k: int, rows: tuple[int, ...], expected: dict[str, int] | None
) -> None:
    first, *others = (plain("q4k", k, n) for n in rows)
    joined = fuse_horizontally(first, others)
    assert joined is not None
    assert chosen(joined) == expected


def test_a_last_matrix_of_another_format_may_have_blocks_that_come_a_little_later() -> None:
    found = []
    for k, rows in ((4096, (4096, 1024, 1024)), (3584, (3584, 512, 512)), (8192, (8192, 1024, 1024))):
        first, same, other = (plain(format, k, n) for format, n in zip(("q4k", "q4k", "q6k_aligned"), rows, strict=True))
        mixed = fuse_horizontally(first, [same, other])
        found.append(None if mixed is None else (chosen(mixed) or {}).get("rows_per_warp"))
    assert found == [3, 3, None]  # 278 blocks of 264; 204; too many rounds for one launch


def test_products_that_leave_a_norm_have_as_many_stages_as_fit() -> None:
    found = []
    for format, k, n in (("q4k", 14336, 4096), ("q6k_aligned", 18944, 3584), ("q4k", 8960, 1536), ("q6k", 3584, 4096)):
        leaving = defer_norm(plain(format, k, n), 3)
        assert leaving is not None
        found.append((chosen(leaving) or {}).get("stages"))
    assert found == [3, 2, 2, None]  # room for three; for two; a row a warp; rows that are no whole pieces


def test_two_blocks_of_a_gated_product_become_one_whose_pipeline_has_the_room() -> None:
    found = []
    for format, k, n in (("q4k", 4096, 14336), ("q4k", 3584, 18944), ("q4k", 1024, 3072), ("q8_0_aligned", 4096, 14336)):
        gated = fuse_swiglu(plain(format, k, n), plain(format, k, n), 3)
        assert gated is not None
        found.append((gated.parameters()["num_warps"], (chosen(gated) or {}).get("num_warps")))
    assert found == [(4, 8), (4, 8), (16, 16), (8, None)]


def test_others_have_a_pipeline_where_a_block_a_multiprocessor_has_all_rows_or_activations_come_in_pieces() -> None:
    assert pipeline_weights(plain("q4k", 4096, 128256)) is None
    found = []
    for k, n in ((14336, 2048), (14336, 4096), (4096, 8192), (18944, 8192)):
        residual = add_residual(plain("q6k_aligned", k, n))
        assert residual is not None
        found.append(tuple((chosen(residual) or {}).get(name) for name in ("num_warps", "rows_per_warp", "stages")))
    assert found == [(16, 1, 3), (16, 2, 3), (None, None, None), (8, 2, 2)]


@pytest.mark.parametrize("format", ["q4k", "q6k", "q8_0", "q8_0_aligned"])
def test_products_that_load_into_registers_spill_nothing(format: str) -> None:
    targets = (Target(90),) if format.endswith("aligned") else (Target(75), Target(90))  # whose tables repack, and all others
    pairs = set()
    for k, n, digits in ((2048, 8192, 3), (3072, 8192, 3), (4096, 14336, 3), (4096, 14336, 2), (18944, 3584, 3)):
        product = plain(format, k, n, digits)
        for one in (fuse_swiglu(product, product, digits), defer_norm(product, digits), fuse_horizontally(product, [product])):
            if one is not None and pipeline_weights(one) is None:
                if one.name.startswith("gated"):
                    pairs.add(one.parameters()["rows_per_warp"] // 2)
                for target in targets:
                    assert assemble(emit(one, target, dependent=target.sm >= 90).text, target).spill_stores == 0, (one, target)
    assert pairs == {"q4k": set(), "q6k": {1}, "q8_0": {1}, "q8_0_aligned": {1, 2}}[format]


@pytest.mark.parametrize("last", ["q6k", "q6k_aligned"])
def test_products_of_two_formats_spill_nothing(last: str) -> None:
    for k, n in ((4096, 1024), (3584, 512)):
        mixed = fuse_horizontally(plain("q4k", k, k), [plain("q4k", k, n), plain(last, k, n)])
        assert mixed is not None
        for target in (Target(75), Target(90)):
            assert assemble(emit(mixed, target).text, target).spill_stores == 0, (mixed, target)


@pytest.mark.parametrize("format", ["q4k", "q5k", "q6k_aligned", "q8_0_aligned"])
def test_rings_spill_nothing(format: str) -> None:
    for k, n in ((4096, 4096), (14336, 4096), (3584, 3584), (1536, 1536)):
        product = plain(format, k, n)
        for one in (
            defer_norm(product, 3),
            fuse_horizontally(product, [product]),
            add_residual(product),
            fuse_swiglu(product, product, 3),
        ):
            pipelined = one and pipeline_weights(one)
            if pipelined is not None:
                assert assemble(emit(pipelined, Target(90)).text, Target(90)).spill_stores == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"pdl": True},
        {"stages": 6, "num_warps": 2, "rows_per_warp": 1},
        {"stages": 3, "holds_next": True, "num_warps": 2, "rows_per_warp": 1},
    ],
    ids=str,
)
def test_settings_that_somebody_names_hinder_no_pipeline(settings: dict[str, Any]) -> None:
    """They are of a product alone: what it is joined or fused with has settings of its own."""
    product = replace(plain("q4k", 4096, 4096), **settings)
    made = (
        defer_norm(product, 3), add_residual(product), fuse_horizontally(product, [product]), fuse_swiglu(product, product, 3),
        fuse_horizontally(product, [product, plain("q6k", 4096, 1024)]),
    )  # fmt: skip
    assert sum(one is not None for one in made) >= 4
    for one in made:
        pipelined = one and pipeline_weights(one)
        if pipelined is not None:
            found = pipelined.parameters()
            assert (found["pdl"], found["holds_next"]) == (False, False)


def test_a_matrix_of_fewer_rows_than_a_warp_takes_has_no_pipeline() -> None:
    joined = fuse_horizontally(plain("q4k", 4096, 4096), [plain("q4k", 4096, 1024), plain("q4k", 4096, 2)])
    assert joined is not None
    assert pipeline_weights(joined) is None
    residual = add_residual(plain("q4k", 18944, 1))
    assert residual is not None
    assert chosen(residual) == {"num_warps": 16, "rows_per_warp": 1, "row_groups": 1, "stages": 3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stages": 0, "holds_next": True}, "holds_next must be False without a pipeline"),
        ({"stages": 33}, "stages must be an integer, 0..32, got 33"),
        ({"stages": 2, "pdl": True}, "with a pipeline, which is filled before the launch before has ended, pdl must be False"),
        (
            {"stages": 2, "rows_per_warp": 8, "num_warps": 32},
            f"stages must be smaller than 2.* bytes of .*; there are {PIPELINE_SHARED}",
        ),
        ({"stages": 1, "n": 1}, "rows_per_warp must be fewer than 2, in which a warp has 2 rows: there are 1 rows of a matrix"),
    ],
    ids=str,
)
def test_rings_that_there_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find("hw_dp4a_q4k_gemv").make(**{"k": 4096, "n": 40, "digits": 3, **settings})


def test_rows_that_are_no_whole_pieces_have_no_pipeline() -> None:
    with pytest.raises(ArgumentError, match="stages must be 0 where rows are no whole pieces of 16 bytes, as those of k=896"):
        find("hw_dp4a_q8_0_gemv").make(k=896, n=5, stages=2)
    with pytest.raises(ArgumentError, match="stages must be 0 where rows are no whole pieces of 16 bytes, as those of k=128"):
        find("hw_dp4a_q8_0_gemv").make(k=128, n=9, stages=1, rows_per_warp=1)  # four are, but a warp may begin with any
    with pytest.raises(ArgumentError, match="with which a block takes 235520 bytes of shared memory"):
        find("gated_hw_dp4a_q4k_gemv").make(
            k=2048, n=2048, digits=3, out_digits=3, num_warps=24, row_groups=16, rows_per_warp=4, normed=True, stages=2
        )
    with pytest.raises(ArgumentError, match="stages must be 0 for several rows of activations, here 3"):
        find("batched_hw_dp4a_q4k_gemv").make(k=1024, n=5, m=3, stages=2)
