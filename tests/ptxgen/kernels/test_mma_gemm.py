"""Matrix products by int8 tensor cores: a row's bits are its own, integers reach their bounds, and what one digit costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.gemm import suited
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemv.plane_gemv_type import PACKED
from ptxgen.kernels.quantize.int8_planes import quantize
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

MOST_NMSE = 5e-4
"""The most that llama.cpp's tests allow for the mean square error of a matrix product, relative to that of the result."""


def y_of(kernel: MmaGemm, arguments: dict[str, Any]) -> np.ndarray:
    return emulate(kernel, arguments, target=Target(80), sanitize=False)[0]["y"]


def some_rows(arguments: dict[str, Any], rows: slice, n: int) -> dict[str, Any]:
    """The arguments of a product of fewer rows of activations."""
    parts = {name: arguments[name][rows] for name in ("digits", "scales", "sums")}
    return {"y": np.full((len(parts["scales"]), n), np.nan, np.float32), "w": arguments["w"], **parts}


@pytest.mark.parametrize(("id", "k"), [("q4k", 768), ("q4_0", 416)])
def test_a_row_has_the_same_bits_whatever_m_and_the_tiles_are(id: str, k: int) -> None:
    kernel = MmaGemm(PACKED[id], m=9, k=k, n=18, digits=1, warps=1, split=2)
    arguments = inputs(kernel)
    together = y_of(kernel, arguments)
    for change, rows in (({"m": 1, "warps": 2, "steps": 2}, slice(8, 9)), ({"tile": 8, "row_tiles": 2}, slice(0, 9))):
        some = y_of(replace(kernel, **change), some_rows(arguments, rows, kernel.n))  # type: ignore[arg-type]
        assert some.tobytes() == together[rows].tobytes()


@pytest.mark.parametrize("id", PACKED)
def test_one_plane_has_no_more_error_than_the_tests_of_llama_cpp_allow(id: str) -> None:
    kernel = MmaGemm(PACKED[id], m=16, k=2048, n=32, digits=1)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (kernel.m, kernel.k)).astype(np.float32)
    arguments = {"w": kernel.format.random_blocks(rng, kernel.n, kernel.k), **quantize(x, 1)._asdict()}
    exact = x.astype("f8") @ kernel.format.dequantize(arguments["w"]).astype("f8").T
    most = np.abs(kernel.reference(**arguments)["y"] - exact) + kernel.tolerance(**arguments)["y"]
    assert np.mean(most**2) / np.mean(exact**2) < MOST_NMSE


@pytest.mark.parametrize(("id", "header", "code"), [("q8_0", 2, 127), ("q8_0", 2, 0x80), ("q5k", 16, 0xFF), ("q4k", 16, 0xFF)])
def test_integers_at_their_extremes_stay_exact(id: str, header: int, code: int) -> None:
    kernel = MmaGemm(PACKED[id], m=2, k=256, n=1, digits=3, warps=1)
    arguments = inputs(kernel)
    arguments["w"].reshape(-1, kernel.format.block_bytes)[:, header:] = code
    x = np.repeat(np.array([[-65504.0], [65504.0]], np.float32), kernel.k, axis=1)
    arguments |= quantize(x, 3)._asdict()
    results, findings = emulate(kernel, arguments, target=Target(80))
    assert not findings
    assert_matches_reference(kernel, arguments, results)


def test_rows_of_activations_and_planes_share_each_load_of_weights() -> None:
    one, many = (emit(find("mma_q4k_gemm").make(k=2048, n=64, m=m, digits=3), Target(80)).text for m in (1, 32))
    assert one.count("ld.global.nc") == many.count("ld.global.nc")
    assert many.count("mma.sync") == 4 * one.count("mma.sync") == 4 * 3 * 2  # tiles, digits, blocks of a pass
    assert ".m16n8k32.row.col.s32.u8.s8.s32" in one


def test_a_scale_of_16_weights_has_sums_of_16_products() -> None:
    text = emit(find("mma_q6k_gemm").make(k=2048, n=64, m=8, digits=1), Target(80)).text
    assert text.count(".m16n8k16.row.col.s32.s8.s8.s32") == 4


def test_the_programmatic_launch_waits_after_the_first_weights_and_before_the_activations() -> None:
    kernel = MmaGemm(PACKED["q4k"], m=8, k=2048, n=64, pdl=True)
    lines = emit(kernel, Target(90)).text.splitlines()
    wait = next(i for i, line in enumerate(lines) if "griddepcontrol.wait" in line)
    assert any("ld.global.nc" in line for line in lines[:wait])
    assert not any("cp.async" in line or "ld.global.f32" in line for line in lines[:wait])
    assert kernel.least_sm == 90


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("m", [1, 8, 9, 32, 64, 512])
def test_suited_settings_fit_for_every_format(m: int, digits: int) -> None:
    for format in PACKED.values():
        for k, n in ((4096, 4096), (14336, 4096), (4096, 128256), (256, 1)):
            kernel = suited.mma(format, k=k, n=n, m=m, digits=digits)
            assert kernel.launch().threads <= 128
            assert suited.mma(format, k=k, n=n, m=m, digits=digits, split=2).split == 2


@pytest.mark.parametrize("m", [8, 32])
@pytest.mark.parametrize("id", ["q4k", "q6k"])
def test_suited_settings_spill_no_register_at_the_shapes_of_an_8b(id: str, m: int) -> None:
    kernel = suited.mma(PACKED[id], k=14336, n=4096, m=m, digits=3, split=1)
    assert assemble(emit(kernel, Target(90)).text, Target(90)).spill_stores == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"k": 300, "n": 4, "m": 1}, "mma_q4k_gemm: k must be a multiple of 256, 1 or more, got 300"),
        ({"k": 512, "n": 4, "m": 0}, "mma_q4k_gemm: m must be an integer, 1 or more, got 0"),
        ({"k": 512, "n": 4, "m": 1, "tile": 12}, "mma_q4k_gemm: tile must be a multiple of 8, 1..64, got 12"),
        ({"k": 512, "n": 4, "m": 1, "warps": 8, "split": 8}, "warps=8 times split=8 is over 32 warps of a block"),
        ({"k": 4096, "n": 4, "m": 64, "tile": 64, "digits": 3}, r"70656 bytes of shared memory, and 49152 are allowed"),
    ],
)
def test_an_impossible_shape_says_what_is_allowed(shape: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find("mma_q4k_gemm").make(**shape)
