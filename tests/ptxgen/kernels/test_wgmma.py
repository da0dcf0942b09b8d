"""Matrix products by warpgroups: a row's bits are its own, whatever the block, and what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import add_residual, fuse_horizontally
from ptxgen.kernels.gemm import suited
from ptxgen.kernels.gemm.f16_gemm_type import IN_HALVES
from ptxgen.kernels.gemm.staged_weights import IN_PIECES
from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm
from ptxgen.kernels.gemm.wgmma_gemm import WINDOWED, WgmmaGemm
from ptxgen.kernels.quantize.f16_split import pack
from ptxgen.kernels.registry import find
from ptxgen.kernels.suited import MULTIPROCESSORS
from ptxgen.target import HOPPER, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.machine_code import faults
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs


def y_of(kernel: WgmmaGemm, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = np.full((len(x), kernel.n), np.nan, np.float32)
    arguments: dict[str, Any] = {"y": y, "w": w, **pack(x, kernel.activation_f16_split)._asdict()}
    return emulate(kernel, arguments, sanitize=False)[0]["y"]


def test_a_row_has_the_same_bits_whatever_m_and_the_block_are() -> None:
    kernel = WgmmaGemm(IN_HALVES["q4k"], m=9, k=768, n=3, warpgroups=1, columns=16, stages=2)
    x = np.random.default_rng(1).standard_normal((kernel.m, kernel.k)).astype(np.float32)
    w = inputs(kernel)["w"]
    together = y_of(kernel, x, w)
    alone = y_of(replace(kernel, m=1, columns=8, stages=3, unpacked=2), x[8:], w)
    assert alone.tobytes() == together[8:].tobytes()
    exact = x.astype("f8") @ kernel.format.dequantize(w).astype("f8").T
    assert np.sqrt(np.mean((together - exact) ** 2) / np.mean(exact**2)) < 2e-6  # a second part that is lost costs 1e-4


def test_a_residual_is_added_with_the_bits_of_the_product_and_an_addition() -> None:
    kernel = WgmmaGemm(IN_HALVES["q4k"], m=9, k=256, n=66, parts=1, warpgroups=1, columns=16, stages=2)
    arguments, onto = inputs(kernel), add_residual(kernel)
    assert onto is not None
    assert add_residual(onto) is None
    stream = np.random.default_rng(3).standard_normal((9, 66)).astype(np.float32)
    product, _ = emulate(kernel, arguments, sanitize=False)
    added, _ = emulate(onto, arguments | {"y": stream}, sanitize=False)
    assert added["y"].tobytes() == (stream + product["y"]).tobytes()


def test_matrices_of_one_launch_have_the_bits_that_they_have_alone() -> None:
    first, second, third = (
        WgmmaGemm(IN_HALVES["q4k"], m=9, k=256, n=n, warpgroups=warpgroups, columns=columns, stages=2)
        for n, warpgroups, columns in ((70, 1, 16), (5, 2, 8), (64, 1, 8))
    )
    together = fuse_horizontally(first, [second, third])
    assert together is not None
    arguments = inputs(together)
    results, findings = emulate(together, arguments, sanitize=True)
    assert not findings
    for number, one in (("", first), ("2", second), ("3", third)):
        own = {name: arguments[name] for name in ("halves", "scales")} | {"w": arguments[f"w{number}"]}
        alone, _ = emulate(one, inputs(one) | own, sanitize=False)
        assert alone["y"].tobytes() == results[f"y{number}"].tobytes()


@pytest.mark.parametrize(
    ("ns", "parts", "warpgroups", "columns", "rounds"),
    [
        ((4096, 1024, 1024), 2, 2, 64, 3),  # 33.7 us each, by _time; on their own one of 60 and two of 47
        ((4096, 1024), 2, 3, 64, 2),  # 47; 45 with 2 x 96 is too near
        ((14336, 14336), 2, 4, 64, 7),  # 60; on their own ten of 47
        ((4096, 1024, 1024), 1, 2, 128, 2),  # 34
        ((14336, 14336), 1, 2, 128, 7),  # 34; on their own eight of them
    ],
)
def test_a_fused_launch_has_the_blocks_that_keep_a_gpu_busy_for_the_shortest_time(
    ns: tuple[int, ...], parts: int, warpgroups: int, columns: int, rounds: int
) -> None:
    first, *others = (suited.wgmma(IN_HALVES["q4k"], k=4096, n=n, m=512, parts=parts) for n in ns)
    together = fuse_horizontally(first, others)
    assert isinstance(together, WgmmaGemm)
    assert (together.blocks.matrices, together.warpgroups, together.columns) == (ns, warpgroups, columns)
    assert -(-together.blocks.groups // MULTIPROCESSORS) == rounds


def test_the_settings_of_any_of_the_fused_kernels_may_be_those_of_all() -> None:
    small = WgmmaGemm(IN_HALVES["q4k"], m=9, k=512, n=5, warpgroups=1, columns=8)
    large = replace(small, n=64, warpgroups=4, columns=64, stages=2)
    assert fuse_horizontally(large, [small]) == replace(small, n=64, n2=5)
    assert fuse_horizontally(small, [large]) == replace(small, n2=64)


def test_launches_that_would_take_longer_as_one_are_not_fused() -> None:
    q = WgmmaGemm(IN_HALVES["q4k"], k=4096, n=4096, m=1024, warpgroups=4, columns=64, stages=2, unpacked=2)  # two rounds
    k = replace(q, n=1024, warpgroups=3, unpacked=4)  # one
    assert fuse_horizontally(q, [k]) is None
    assert fuse_horizontally(q, [k, k]) is not None


def test_only_kernels_for_the_same_activations_are_fused() -> None:
    one = WgmmaGemm(IN_HALVES["q4k"], m=9, k=512, n=5)
    assert fuse_horizontally(one, [one]) is not None
    for other in (replace(one, m=8), replace(one, parts=1), replace(one, k=256), replace(one, n2=3), add_residual(one)):
        assert other is not None
        assert fuse_horizontally(one, [other]) is None
    assert fuse_horizontally(one, [WgmmaGemm(IN_HALVES["q6k"], m=9, k=512, n=5)]) is None
    assert fuse_horizontally(one, [StationaryGemm(IN_HALVES["q4k"], m=9, k=512, n=5)]) is None


def test_a_kernel_of_one_matrix_does_not_name_others() -> None:
    one = WgmmaGemm(IN_HALVES["q4k"], m=9, k=512, n=5)
    assert "n2" not in str(one)
    assert "n2=7, " in str(replace(one, n2=7))
    assert "n3" not in str(replace(one, n2=7))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("ns", [(4096, 1024, 1024), (14336, 14336)], ids=["attention", "ffn"])
def test_several_matrices_leave_products_asynchronous_and_spill_no_register(ns: tuple[int, ...], parts: int) -> None:
    first, *others = (suited.wgmma(IN_HALVES["q4k"], k=4096, n=n, m=512, parts=parts) for n in ns)
    together = fuse_horizontally(first, others)
    assert together is not None
    assert faults(assemble(emit(together, HOPPER).text, HOPPER), together.launch().threads) == []


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("format", WINDOWED, ids=str)
def test_suited_settings_leave_products_asynchronous_and_spill_no_register(format: Any, parts: int, residual: bool) -> None:
    kernel = replace(suited.wgmma(format, k=14336, n=4096, m=512, parts=parts), residual=residual)
    assert faults(assemble(emit(kernel, HOPPER).text, HOPPER), kernel.launch().threads) == []


def test_it_is_written_for_the_one_gpu_that_has_its_products() -> None:
    kernel = find("wgmma_q4k_gemm").make(k=512, n=64, m=64)
    assert [str(target) for target in kernel.targets()] == ["sm_90a"]
    with pytest.raises(ArgumentError, match="is written for sm_90a alone, and the target is sm_100"):
        emit(kernel, Target(100))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"k": 300, "n": 4, "m": 1}, "wgmma_q4k_gemm: k must be a multiple of 256, 1 or more, got 300"),
        ({"k": 512, "n": 4, "m": 1, "columns": 12}, r"columns must be one of 8, 16, 24, 32, 48, 64, 96, 128, got 12"),
        ({"k": 512, "n": 4, "m": 1, "unpacked": 3}, "unpacked must be one of 1, 2, 4, 8, got 3"),
        ({"k": 512, "n": 4, "m": 1, "warpgroups": 5}, r"warpgroups must be an integer, 1..4, got 5"),
        ({"k": 512, "n": 4, "m": 1, "columns": 128}, r"419328 bytes of shared memory, and 232448 are allowed"),
    ],
)
def test_an_impossible_shape_says_what_is_allowed(shape: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find("wgmma_q4k_gemm").make(**shape)


@pytest.mark.parametrize(("m", "columns", "stages"), [(9, 16, 3), (3, 8, 4)])
def test_weights_that_come_through_the_stages_change_no_bit(m: int, columns: int, stages: int) -> None:
    loaded = WgmmaGemm(IN_HALVES["q4k"], m=m, k=1280, n=70, warpgroups=1, columns=columns)
    arguments = inputs(loaded)
    expected, _ = emulate(loaded, arguments, sanitize=False)
    copied, findings = emulate(replace(loaded, staged=True, stages=stages), arguments, sanitize=True)
    assert not findings
    assert copied["y"].tobytes() == expected["y"].tobytes()


def test_blocks_that_share_k_leave_their_sums_and_the_last_adds_them() -> None:
    kernel = WgmmaGemm(IN_HALVES["q4k"], m=9, k=1280, n=70, n2=3, warpgroups=1, columns=8, staged=True, slices=3)
    arguments = inputs(kernel)
    for _ in range(2):  # the second launch finds the counters as the first has left them
        results, findings = emulate(kernel, arguments, sanitize=True)
        assert not findings
        assert_matches_reference(kernel, arguments, results)
        arguments["counters"] = results["counters"]


def test_staged_products_of_several_matrices_have_as_many_slices_as_a_gpu_has_room_for() -> None:
    one = suited.wgmma(IN_HALVES["q4k"], k=4096, n=14336, m=32, parts=2)
    assert (one.staged, one.slices, one.blocks.groups) == (True, 2, 56)
    both = fuse_horizontally(one, [one])
    assert isinstance(both, WgmmaGemm)
    assert (both.slices, both.blocks.groups) == (1, 112)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("format", IN_PIECES, ids=str)
def test_suited_settings_for_few_rows_leave_products_asynchronous_and_spill_no_register(format: Any, parts: int) -> None:
    kernel = suited.wgmma(format, k=14336, n=4096, m=32, parts=parts)
    assert kernel.staged
    assert faults(assemble(emit(kernel, HOPPER).text, HOPPER), kernel.launch().threads) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"staged": True, "stages": 2}, "staged wants 3 stages or more, got 2"),
        ({"slices": 2}, "slices=2 wants staged weights"),
        ({"staged": True, "slices": 4}, "5 windows make 3 slices of 2, got slices=4"),
    ],
)
def test_what_stages_and_slices_want(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        WgmmaGemm(IN_HALVES["q4k"], m=9, k=1280, n=70, warpgroups=1, columns=8, **settings)


def test_staged_weights_want_aligned_blocks() -> None:
    with pytest.raises(
        ArgumentError, match="wants blocks that are aligned to 16 bytes; formats whose are: Q4_K, Q5_K, Q6_K_ALIGNED"
    ):
        WgmmaGemm(IN_HALVES["q6k"], m=9, k=1280, n=70, warpgroups=1, columns=8, staged=True)
