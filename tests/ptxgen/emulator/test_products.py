"""Matrix products in the emulator: each kind is one function of the compiled kernel, however many of them it has."""

from __future__ import annotations

import numpy as np

from ptxgen.emulator import run
from ptxgen.emulator.jit import compile_kernel
from ptxgen.emulator.parse import parse
from tests.ptxgen.emulator.ptx import kernel

PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r2, %r2, %r2, %r2}, {%r2, %r2}, "
ONES = "mov.b32 %r2, 0x3C003C00;\n"
STORE = "mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd1, %rd1, %rd2;\nst.global.f32 [%rd1], %f3;"
TEXT = kernel(
    "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\nmov.f32 %f9, 0f3F800000;\n"
    + ONES + PRODUCT + "{%f9, %f9, %f9, %f9};\n" + PRODUCT + "{%f1, %f2, %f3, %f4};\n" + STORE,
    "u64",
)  # fmt: skip


def test_two_products_are_two_calls_of_one_function() -> None:
    text = compile_kernel(parse(TEXT), "k", sanitize=False).text
    assert text.count("define internal") == 1
    assert text.count("@mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(") == 3


def test_the_sum_of_one_is_where_the_next_starts() -> None:
    out = np.zeros(32, np.float32)
    run(TEXT, "k", 1, 32, [out])
    assert (out == 33.0).all()
