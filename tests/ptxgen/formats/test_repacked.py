"""Formats that weights are given when they are loaded hold what the blocks of files hold, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, REPACKED, RepackedFormat, find
from ptxgen.kernels.gemm.f16_mma_gemm import HalfMmaGemm
from ptxgen.kernels.gemm.mma_gemm import MmaGemm
from ptxgen.kernels.gemv.basic import Gemv
from ptxgen.kernels.gemv.chunked_tiled import ChunkedTiledGemv
from ptxgen.kernels.gemv.dp4a import Dp4aGemv
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.mwv import MwvGemv
from ptxgen.kernels.gemv.tiled import TiledGemv
from ptxgen.kernels.gemv.vectorized import VectorizedGemv
from ptxgen.kernels.gemv.wide import WideGemv
from ptxgen.kernels.repack.repack import Repack
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.running import emulate, inputs

every_repacked = pytest.mark.parametrize("format", REPACKED.values(), ids=str)


def rows_of(format: RepackedFormat, seed: int, rows: int, blocks: int) -> NDArray[np.uint8]:
    size = rows, blocks * format.native_bytes
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@every_repacked
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 3), blocks=st.integers(1, 3))
def test_packing_loses_nothing_and_keeps_rows_apart(format: RepackedFormat, seed: int, rows: int, blocks: int) -> None:
    native = rows_of(format, seed, rows, blocks)
    packed = format.pack(native)
    assert packed.shape == (rows, format.row_bytes(blocks * format.block))
    assert np.array_equal(format.unpack_native(packed), native)
    assert all(np.array_equal(format.pack(row), one) for row, one in zip(native, packed, strict=True))


@every_repacked
def test_no_file_has_the_format_and_every_load_of_it_may_be_aligned(format: RepackedFormat) -> None:
    assert format.name not in FORMATS
    assert find(format.name) is format
    assert format.native is FORMATS[format.native.name]
    assert format.block % format.native.block == 0
    assert format.align == 16


def test_a_code_of_aligned_q6_k_is_a_nibble_and_a_pair_and_d_stands_beside_every_four_scales() -> None:
    format, native = REPACKED["Q6_K_ALIGNED"], np.zeros(210, np.uint8)
    native[0], native[32], native[128] = 0xB7, 0x0D, 0b10_00_01_11  # values 0 and 64, 32; the top bits of 0, 32, 64 and 96
    native[192:208], native[208:] = range(16), (0xCD, 0xAB)
    packed = format.pack(native)
    assert packed[0] == 0b01_11_0111  # the four high bits of value 32, 01 1101, and the four low ones of value 0, 11 0111
    assert packed[128] == 0b00_11_01_00  # of the values 16, 0, 32 and 48
    assert (packed[32], packed[144]) == (0b10_00_1011, 0)  # of the values 96, 10 0000, and 64, 00 1011
    assert packed[192:].reshape(4, 8).tolist() == [[4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3, 0xCD, 0xAB, 0, 0] for i in range(4)]


def test_aligned_q8_0_is_the_codes_of_eight_blocks_and_then_their_scales() -> None:
    format, native = REPACKED["Q8_0_ALIGNED"], np.zeros((8, 34), np.uint8)
    native[:, :2], native[:, 2:] = [(number, 0x80 | number) for number in range(8)], np.arange(256).reshape(8, 32)
    packed = format.pack(native.reshape(1, -1))[0]
    assert packed.size == native.size
    assert packed[:256].tolist() == list(range(256))
    assert packed[256:].reshape(8, 2).tolist() == [[number, 0x80 | number] for number in range(8)]


def result_of(kernel: KernelType, format: RepackedFormat, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the kernel of the native format gives, and what its like gives for the same weights, repacked."""
    native, made = kernel, replace(kernel, format=format)  # type: ignore[call-arg]
    arguments = inputs(native, seed)
    packed = {name: format.pack(array) if name.rstrip("23") == "w" else array for name, array in arguments.items()}
    (expected, _), (results, findings) = emulate(native, arguments), emulate(made, packed)
    assert not findings
    written = [
        name for name, argument in native.signature().items() if isinstance(argument, Array) and argument.direction != "in"
    ]
    assert written
    first, second = (np.concatenate([of[name].reshape(-1).view(np.uint8) for name in written]) for of in (expected, results))
    return first, second


@every_repacked
def test_products_on_halves_have_the_bits_that_they_have_of_the_native_format(format: RepackedFormat) -> None:
    expected, result = result_of(HalfMmaGemm(format.native, k=768, n=5, m=1, split=2, ahead=0), format, 0)
    assert np.array_equal(result, expected)


Q8_0, ALIGNED = FORMATS["Q8_0"], REPACKED["Q8_0_ALIGNED"]


@every_repacked
@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("k", [256, 512, 768, 1536, 3584, 4096])
def test_products_of_repacked_blocks_have_the_bits_of_those_of_files(k: int, digits: int, format: RepackedFormat) -> None:
    """One row of activations and several; k of lane groups of a warp, of whole steps, and with a partial one."""
    for kernel in (
        HwDp4aGemv(format.native, k=k, n=5, digits=digits, num_warps=1, rows_per_warp=2),
        gemvs.batched(format.native, k=k, n=3, m=2, digits=digits, num_warps=1),
    ):
        expected, result = result_of(kernel, format, k + digits)
        assert np.array_equal(result, expected), kernel


def test_a_lane_loads_sixteen_weights_of_aligned_q8_0_by_two_instructions() -> None:
    kernel = HwDp4aGemv(ALIGNED, k=4096, n=2, digits=3, num_warps=1, rows_per_warp=1)
    loads = re.findall(r"ld\.global\.nc\S*", emit(kernel).text)
    assert [len([load for load in loads if load.endswith(size)]) for size in (".v4.u32", ".u16")] == [8, 8]
    assert len(loads) == 2 * kernel.fragments.steps == 16


OTHERS: list[KernelType] = [
    HwDp4aGemv(Q8_0, k=18944, n=2, digits=3, num_warps=1),  # a loop
    HwDp4aGemv(Q8_0, k=1536, n=9, digits=3, num_warps=1, row_groups=4, normed=True),
    gemvs.residual(Q8_0, k=1536, n=3, digits=3, num_warps=1),
    gemvs.fused(Q8_0, k=768, n=3, n2=2, n3=1, digits=3, num_warps=1, rows_per_warp=1),
    gemvs.swiglu(Q8_0, k=1536, n=32, digits=3, out_digits=3, num_warps=2, rows_per_warp=4),
    gemvs.leaving_norm(Q8_0, k=1536, n=32, digits=3, out_digits=3, num_warps=2),
    Dp4aGemv(Q8_0, k=1536, n=3, digits=3),
    Dp4aGemv(Q8_0, k=1536, n=3, digits=3, num_warps=4),
    MmaGemm(Q8_0, k=768, n=17, m=3, digits=3, warps=1),
]


@pytest.mark.parametrize("kernel", OTHERS, ids=lambda kernel: kernel.name)
def test_whatever_multiplies_digits_by_aligned_q8_0_gives_the_bits_of_q8_0(kernel: KernelType) -> None:
    expected, result = result_of(kernel, ALIGNED, 1)
    assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("kernel", "alike"),
    [
        (Gemv(Q8_0, k=1536, n=16), True),
        (TiledGemv(Q8_0, k=1536, n=16), True),
        (ChunkedTiledGemv(Q8_0, k=1536, n=16), True),
        (MwvGemv(Q8_0, k=1536, n=16), False),  # several warps share a row
        (WideGemv(Q8_0, k=1536, n=16), False),
        (VectorizedGemv(Q8_0, k=1536, n=16), False),
    ],
    ids=lambda one: getattr(one, "name", None),
)
def test_products_in_f32_have_the_bits_of_q8_0_where_lanes_of_a_warp_have_a_column_each(
    kernel: KernelType, alike: bool
) -> None:
    expected, result = result_of(kernel, ALIGNED, 2)
    assert np.array_equal(result, expected) == alike
    np.testing.assert_allclose(result.view(np.float32), expected.view(np.float32), rtol=1e-4, atol=1e-5)


def test_a_format_of_files_is_not_repacked_to() -> None:
    with pytest.raises(ArgumentError, match=r"Q4_K is in files; formats that .* repacked to: Q6_K_ALIGNED, Q8_0_ALIGNED$"):
        Repack(find("Q4_K"), k=256, n=1)  # type: ignore[arg-type]
