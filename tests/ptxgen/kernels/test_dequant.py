"""Matrices as f16: rounding at the edges of the type, and how wide the stores are."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, Format, find
from ptxgen.kernels.dequant.dequant_f16 import DequantF16
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import run


def test_f16_split_is_rounded_to_nearest_even_at_ties_subnormals_and_overflow() -> None:
    weights = np.array(
        [1 + 2**-11, 1 + 3 * 2**-11, 65519.996, 65520.0, -1e30, 2**-24, 2**-25, 3 * 2**-25, -0.0, np.inf], np.float32
    )
    kernel = DequantF16(format=find("F32"), k=weights.size, n=1)
    y = run(kernel, {"y": np.empty((1, weights.size), np.float16), "w": weights.view(np.uint8).reshape(1, -1)})["y"]
    wanted = np.array([1, 1 + 2**-9, 65504, np.inf, -np.inf, 2**-24, 0, 2**-23, -0.0, np.inf], np.float16)
    assert y[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("scale", [65504.0, -65504.0, 2.0**-24])
def test_the_largest_and_smallest_scales_give_what_numpy_gives(scale: float) -> None:
    kernel = DequantF16(format=find("Q8_0"), k=96, n=3)
    arguments = kernel.inputs(np.random.default_rng(1))
    arguments["w"].reshape(-1, 34)[:, :2] = np.array([scale], "<f2").view(np.uint8)
    assert run(kernel, arguments)["y"].tobytes() == kernel.reference(**arguments)["y"].tobytes()


@pytest.mark.parametrize("format", FORMATS.values(), ids=str)
def test_a_thread_stores_as_many_f16_at_once_as_the_format_has_columns_side_by_side(format: Format) -> None:
    kernel = DequantF16(format=format, k=format.block, n=1)
    vector = f".v{kernel.width}" if kernel.width > 1 else ""
    assert emit(kernel).text.count(f"st.global{vector}.b16") == format.depth


def test_part_of_a_block_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="q4k_dequant_f16: k must be a multiple of 256"):
        DequantF16(format=find("Q4_K"), k=384, n=1)
