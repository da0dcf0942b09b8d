"""Matrix products by f16 tensor cores: a row's bits are its own, two parts have the precision of f32, and what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import add_residual
from ptxgen.kernels.gemm import suited
from ptxgen.kernels.gemm.f16_gemm_type import IN_HALVES
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.quantize.f16_split import pack
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs


def y_of(kernel: HalfMmaGemm, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = np.full((len(x), kernel.n), np.nan, np.float32)
    arguments: dict[str, Any] = {"y": y, "w": w, **pack(x, kernel.activation_f16_split)._asdict()}
    return emulate(kernel, arguments, target=Target(80), sanitize=False)[0]["y"]


def test_a_row_has_the_same_bits_whatever_m_and_the_tiles_are() -> None:
    kernel = HalfMmaGemm(IN_HALVES["q4k"], m=9, k=512, n=18, parts=1, split=2, chains=2, ahead=0)
    x = np.random.default_rng(1).standard_normal((kernel.m, kernel.k)).astype(np.float32)
    w = inputs(kernel)["w"]
    together = y_of(kernel, x, w)
    alone = y_of(replace(kernel, m=1, warps=2), x[8:], w)
    assert alone.tobytes() == together[8:].tobytes()


def test_a_last_block_with_fewer_tiles_of_activations_reads_none_past_the_last() -> None:
    kernel = HalfMmaGemm(IN_HALVES["q4k"], m=17, k=256, n=8, parts=1, split=1, tile=16, ahead=0)
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments, target=Target(80), sanitize=True)
    assert not findings
    assert_matches_reference(kernel, arguments, results)


def test_a_residual_is_added_with_the_bits_of_the_product_and_an_addition() -> None:
    kernel = HalfMmaGemm(IN_HALVES["q4k"], m=3, k=512, n=18, parts=1, split=2, ahead=0)
    arguments = inputs(kernel)
    onto = add_residual(kernel)
    assert onto is not None
    assert add_residual(onto) is None
    stream = np.random.default_rng(3).standard_normal((3, 18)).astype(np.float32)
    product, _ = emulate(kernel, arguments, target=Target(80), sanitize=False)
    added, _ = emulate(onto, arguments | {"y": stream}, target=Target(80), sanitize=False)
    assert added["y"].tobytes() == (stream + product["y"]).tobytes()


@pytest.mark.parametrize(("id", "k"), [("q4k", 1024), ("q6k", 1024), ("q5_1", 1024 + 96)])
def test_two_parts_of_activations_have_the_precision_of_f32(id: str, k: int) -> None:
    kernel = HalfMmaGemm(IN_HALVES[id], m=1, k=k, n=8, split=1, ahead=0)
    x = np.random.default_rng(2).standard_normal((1, kernel.k)).astype(np.float32)
    w = inputs(kernel)["w"]
    exact = x.astype("f8") @ kernel.format.dequantize(w).astype("f8").T
    error = y_of(kernel, x, w) - exact
    assert np.sqrt(np.mean(error**2) / np.mean(exact**2)) < 2e-6  # a second part that is lost costs 1e-4


def test_rows_of_activations_share_each_load_of_weights() -> None:
    one, many = (emit(find("half_mma_q4k_gemm").make(k=2048, n=64, m=m, ahead=0), Target(80)).text for m in (1, 32))
    assert one.count("ld.global.nc") == many.count("ld.global.nc") == 6
    assert many.count("mma.sync") == 4 * one.count("mma.sync") == 4 * 17 * 2


def test_the_programmatic_launch_waits_after_the_first_weights_and_before_the_activations() -> None:
    kernel = HalfMmaGemm(IN_HALVES["q4k"], m=8, k=2048, n=64, pdl=True)
    lines = emit(kernel, Target(90)).text.splitlines()
    wait = next(i for i, line in enumerate(lines) if "griddepcontrol.wait" in line)
    assert any("ld.global.nc" in line for line in lines[:wait])
    assert not any("ld.global.L1" in line or "ld.global.f32" in line for line in lines[:wait])
    assert kernel.least_sm == 90


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("m", [1, 8, 9, 32, 64, 512])
def test_suited_settings_fit_for_every_format(m: int, parts: int) -> None:
    for format in IN_HALVES.values():
        for k, n in ((4096, 4096), (14336, 4096), (4096, 128256), (256, 1)):
            assert suited.half_mma(format, k=k, n=n, m=m, parts=parts).launch().threads <= 512
            assert suited.half_mma(format, k=k, n=n, m=m, parts=parts, split=2).split == 2


@pytest.mark.parametrize("m", [8, 32])
@pytest.mark.parametrize("id", ["q4k", "q6k"])
def test_suited_settings_spill_no_register_at_the_shapes_of_an_8b(id: str, m: int) -> None:
    kernel = suited.half_mma(IN_HALVES[id], k=14336, n=4096, m=m, parts=2)
    assert assemble(emit(kernel, Target(90)).text, Target(90)).spill_stores == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"k": 300, "n": 4, "m": 1}, "half_mma_q4k_gemm: k must be a multiple of 256, 1 or more, got 300"),
        ({"k": 512, "n": 4, "m": 0}, "half_mma_q4k_gemm: m must be an integer, 1 or more, got 0"),
        ({"k": 512, "n": 4, "m": 1, "parts": 3}, "half_mma_q4k_gemm: parts must be an integer, 1..2, got 3"),
        ({"k": 512, "n": 4, "m": 1, "tile": 12}, "half_mma_q4k_gemm: tile must be a multiple of 8, 1..64, got 12"),
        ({"k": 512, "n": 4, "m": 1, "warps": 8, "split": 8}, "warps=8 times split=8 is over 32 warps of a block"),
        ({"k": 512, "n": 4, "m": 64, "tile": 64, "split": 16}, r"65536 bytes of shared memory, and 49152 are allowed"),
    ],
)
def test_an_impossible_shape_says_what_is_allowed(shape: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find("half_mma_q4k_gemm").make(**shape)
