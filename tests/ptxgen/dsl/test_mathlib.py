"""The math library against float64 NumPy, run from its text on the emulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.errors import TypeMismatch
from ptxgen.target import DEFAULT
from ptxgen.toolchain.module import module_text
from ptxgen.types import F32
from ptxgen.verify.verify import verify
from tests.ptxgen.dsl.writing import written

F32s = NDArray[np.float32]
F64s = NDArray[np.float64]
Function = Callable[[KernelBuilder, Value], Value]
THREADS = 256


def evaluate(function: Function, x: F32s) -> F32s:
    """`function` of every x, on the emulator."""
    blocks = -(-x.size // THREADS)
    padded = np.resize(x, blocks * THREADS)
    signature: Signature = {"x": read(F32, padded.size), "y": write(F32, padded.size)}
    k = KernelBuilder("probe", signature, LaunchConfig(blocks, THREADS))
    i = k.ctaid.x * THREADS + k.tid.x
    k.store(k.arg.y[i], function(k, k.load(k.arg.x[i])))
    kernel = k.finish()
    verify(kernel, DEFAULT)
    y = np.zeros_like(padded)
    emulator.run(module_text([kernel], DEFAULT), "probe", blocks, THREADS, [padded, y], sanitize=False)
    return y[: x.size]


def ulps(got: F32s, right: F64s) -> float:
    """The largest error in units in the last place of the right result (of the least normal number below it)."""
    spacing = np.spacing(np.maximum(np.abs(right), np.finfo(np.float32).tiny).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - right) / spacing))


def between(low: float, high: float, count: int = 1 << 18) -> F32s:
    """Random numbers, even in value, and the ends."""
    x = np.random.default_rng(5).uniform(low, high, count).astype(np.float32)
    return np.concatenate([x, np.array([low, high, 0.0], np.float32)])


def every_size(count: int = 1 << 18) -> F32s:
    """Random finite numbers, even in exponent, of both signs."""
    bits = np.random.default_rng(6).integers(0, 1 << 32, count, dtype=np.uint32)
    x = bits.view(np.float32)
    return x[np.isfinite(x)]


def exact_gelu(x: F64s) -> F64s:
    y: F64s = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


def test_exp_is_within_1_1_ulp_wherever_it_is_normal() -> None:
    x = between(-87.3, 88.72)
    assert ulps(evaluate(mathlib.exp, x), np.exp(x.astype(np.float64))) < 1.1


def test_exp_of_small_numbers_is_within_1_1_ulp() -> None:
    x = every_size()
    x = x[np.abs(x) < 1]
    assert ulps(evaluate(mathlib.exp, x), np.exp(x.astype(np.float64))) < 1.1


def test_exp_rounds_subnormal_results_once() -> None:
    x = between(-104.5, -87.0)
    right = np.exp(x.astype(np.float64))
    assert ulps(evaluate(mathlib.exp, x), right) < 1.0


def test_exp_at_the_ends_of_its_range() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 88.72284, 88.7229, 3e38, -3e38, -103.98, -103.9], np.float32)
    with np.errstate(over="ignore"):
        right = np.exp(x.astype(np.float64)).astype(np.float32)
    assert np.allclose(evaluate(mathlib.exp, x), right, rtol=2e-7, atol=0, equal_nan=True)


def test_sigmoid_and_silu_are_within_3_ulp() -> None:
    x = between(-87.0, 100.0)
    wide = x.astype(np.float64)
    assert ulps(evaluate(mathlib.sigmoid, x), 1 / (1 + np.exp(-wide))) < 3
    assert ulps(evaluate(mathlib.silu, x), wide / (1 + np.exp(-wide))) < 3


def test_silu_of_huge_numbers_is_the_number_or_zero() -> None:
    x = np.array([3e38, -3e38, 1e20, -1e20], np.float32)
    assert np.array_equal(evaluate(mathlib.silu, x), np.array([3e38, 0, 1e20, 0], np.float32))


def test_gelu_is_within_three_parts_in_ten_million_of_its_argument() -> None:
    x = np.concatenate([between(-12.0, 12.0), every_size()])
    x = x[np.abs(x) < 1e12]
    with np.errstate(over="ignore"):
        right = exact_gelu(x.astype(np.float64))
    error = np.abs(evaluate(mathlib.gelu, x) - right)
    assert np.max(error / np.maximum(np.abs(x), 1e-37)) < 3e-7


def test_tanh_is_within_2_ulp() -> None:
    x = np.concatenate([between(-12.0, 12.0), between(-0.7, 0.7), every_size()])
    assert ulps(evaluate(mathlib.tanh, x), np.tanh(x.astype(np.float64))) < 2.0


def test_tanh_of_infinities_and_zeros() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    y = evaluate(mathlib.tanh, x)
    assert np.array_equal(y, np.tanh(x), equal_nan=True)
    assert np.array_equal(np.signbit(y[3:]), [False, True])


def test_rsqrt_is_within_1_and_a_half_ulp() -> None:
    x = np.abs(every_size())
    x = x[x >= np.finfo(np.float32).tiny]
    assert ulps(evaluate(mathlib.rsqrt, x), 1 / np.sqrt(x.astype(np.float64))) < 1.5


def test_rsqrt_of_normal_is_within_half_an_ulp_and_a_little() -> None:
    x = np.abs(every_size())
    x = np.concatenate([x[x >= 2.0**-125], np.array([2.0**-125, np.finfo(np.float32).max, 1.0], np.float32)])
    assert ulps(evaluate(mathlib.rsqrt_of_normal, x), 1 / np.sqrt(x.astype(np.float64))) < 0.51


def test_a_reciprocal_is_correctly_rounded_for_every_significand() -> None:
    significands = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(127 << 23)).view(np.float32)
    for size in (2.0**-120, 1.0, 2.0**119):
        x = (significands * np.float32(size)).astype(np.float32)
        assert np.array_equal(evaluate(mathlib.reciprocal_of_normal, x), np.float32(1) / x)


def test_silu_has_the_bits_of_a_division() -> None:
    special = np.array([0.0, -0.0, -88.8, 3e38, np.inf], np.float32)
    x = np.concatenate([between(-90.0, 90.0), between(-1e-3, 1e-3), every_size(), special])
    divisor = evaluate(mathlib.exp, -x) + np.float32(1)
    with np.errstate(under="ignore"):
        assert evaluate(mathlib.silu, x).tobytes() == (x / divisor).tobytes()
    assert np.isnan(evaluate(mathlib.silu, np.array([-np.inf, np.nan], np.float32))).all()


def test_gelu_of_each_has_the_bits_of_gelu() -> None:
    special = np.array([0.0, -0.0, -14.0, 3e38, -3e38, np.inf], np.float32)
    x = np.concatenate([between(-16.0, 16.0), between(-1e-3, 1e-3), every_size(), special])
    together = evaluate(lambda k, one: mathlib.gelu_of_each(k, [one])[0], x)
    assert together.tobytes() == evaluate(mathlib.gelu, x).tobytes()


def test_rsqrt_of_normal_of_infinity_and_nan() -> None:
    x = np.array([np.inf, np.nan], np.float32)
    assert np.array_equal(evaluate(mathlib.rsqrt_of_normal, x), np.array([0.0, np.nan], np.float32), equal_nan=True)


@pytest.mark.parametrize(
    "function", [mathlib.exp, mathlib.silu, mathlib.gelu, mathlib.tanh, mathlib.rsqrt, mathlib.rsqrt_of_normal]
)
def test_no_function_uses_an_approximate_or_unrounded_instruction(function: Function) -> None:
    kernel = written(lambda k: function(k, k.load(k.arg.x[k.tid.x])))
    opcodes = {op.row.opcode(op.modifiers) for op in kernel.ops}
    assert not {opcode for opcode in opcodes if "approx" in opcode or "full" in opcode}
    rounded = ("add", "sub", "mul", "fma", "div", "sqrt")
    arithmetic = {opcode for opcode in opcodes if opcode.endswith(".f32") and opcode.split(".")[0] in rounded}
    assert arithmetic
    assert all(".rn." in opcode for opcode in arithmetic)


def test_an_integer_argument_is_refused_with_the_authors_line() -> None:
    with pytest.raises(TypeMismatch, match=r"exp takes an f32 register, got u32(.|\n)*test_mathlib\.py"):
        written(lambda k: mathlib.exp(k, k.tid.x))
