"""Matrix products by warpgroups: a row's bits are its own, whatever the block, and what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemm.half_gemm_type import IN_HALVES
from ptxgen.kernels.gemm.wgmma_gemm import WINDOWED, WgmmaGemm
from ptxgen.kernels.quantize.activation_halves import pack
from ptxgen.kernels.registry import find
from ptxgen.target import HOPPER, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.machine_code import faults
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import emulate, inputs


def y_of(kernel: WgmmaGemm, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = np.full((len(x), kernel.n), np.nan, np.float32)
    arguments: dict[str, Any] = {"y": y, "w": w, **pack(x, kernel.activation_halves)._asdict()}
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
    arguments, onto = inputs(kernel), kernel.with_residual()
    assert onto is not None
    assert onto.with_residual() is None
    stream = np.random.default_rng(3).standard_normal((9, 66)).astype(np.float32)
    product, _ = emulate(kernel, arguments, sanitize=False)
    added, _ = emulate(onto, arguments | {"y": stream}, sanitize=False)
    assert added["y"].tobytes() == (stream + product["y"]).tobytes()


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("format", WINDOWED, ids=str)
def test_suited_settings_leave_products_asynchronous_and_spill_no_register(format: Any, parts: int, residual: bool) -> None:
    kernel = replace(WgmmaGemm.suited(format, k=14336, n=4096, m=512, parts=parts), residual=residual)
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
