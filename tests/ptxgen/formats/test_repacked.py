"""Formats that weights are given when they are loaded hold what the blocks of files hold, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, REPACKED, RepackedFormat, find
from ptxgen.kernels.gemm.half_mma_gemm import HalfMmaGemm
from ptxgen.kernels.repack.repack import Repack
from tests.ptxgen.kernels.running import emulate, inputs

every_repacked = pytest.mark.parametrize("format", REPACKED.values(), ids=str)


def rows_of(format: RepackedFormat, seed: int, rows: int, blocks: int) -> NDArray[np.uint8]:
    size = rows, blocks * format.native.block_bytes
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
    assert format.native.block == format.block
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


def test_products_on_halves_have_the_bits_that_they_have_of_q6_k() -> None:
    made, native = (HalfMmaGemm(find(name), k=768, n=5, m=1, split=2, ahead=0) for name in ("Q6_K_ALIGNED", "Q6_K"))
    arguments = inputs(native)
    packed = arguments | {"w": REPACKED["Q6_K_ALIGNED"].pack(arguments["w"])}
    (expected, _), (results, findings) = emulate(native, arguments), emulate(made, packed)
    assert not findings
    assert np.array_equal(results["y"], expected["y"])


def test_a_format_of_files_is_not_repacked_to() -> None:
    with pytest.raises(ArgumentError, match="Q4_K is in files; formats that weights are repacked to: Q6_K_ALIGNED"):
        Repack(find("Q4_K"), k=256, n=1)  # type: ignore[arg-type]
