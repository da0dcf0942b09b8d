"""Floats on the emulator against exact arithmetic: every direction, every narrow type, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import run
from tests.ptxgen.emulator.ptx import kernel

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(3)
N = 512


def operands(kind: str, n: int = N) -> Array:
    """Random bits as floats, with infinities and NaN made finite, and exponents near each other in half of them."""
    bits = rng.integers(0, 1 << (16 if kind != "f32" else 32), size=n, dtype=np.uint32)
    if kind == "f32":
        near = (bits & 0x807FFFFF) | ((rng.integers(120, 134, size=n).astype(np.uint32)) << 23)
        bits = np.where(rng.random(n) < 0.5, near, bits)
        finite = (bits & 0x7F800000) != 0x7F800000
        return np.where(finite, bits, 0x3F800001).astype(np.uint32)
    top = 0x7C00 if kind == "f16" else 0x7F80
    return np.where((bits & top) != top, bits, 0x3C01).astype(np.uint16)


def exact(bits: Array, kind: str) -> list[Fraction]:
    if kind == "f32":
        return [Fraction(float(v)) for v in bits.view(np.float32)]
    if kind == "f16":
        return [Fraction(float(v)) for v in bits.view(np.float16)]
    return [Fraction(float(v)) for v in (bits.astype(np.uint32) << 16).view(np.float32)]


def round_to(value: Fraction, kind: str, mode: str) -> int | None:
    """The bits of a nonzero value, rounded once; None for zero, whose sign is not asked."""
    if value == 0:
        return None
    digits, least, width = {"f32": (24, -149, 32), "f16": (11, -24, 16), "bf16": (8, -133, 16)}[kind]
    sign, size = value < 0, abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = max(exponent - digits + 1, least)
    scaled = size / Fraction(2) ** unit
    low = scaled.numerator // scaled.denominator
    rest = scaled - low
    up = {"rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low & 1), "rz": False,
          "rp": rest > 0 and not sign, "rm": rest > 0 and sign}[mode]  # fmt: skip
    low += int(up)
    bits = low if unit == least else low + ((unit - least) << (digits - 1))
    top = ((1 << (width - digits)) - 1) << (digits - 1)
    if bits >= top:
        outward = mode == "rn" or (mode == "rp" and not sign) or (mode == "rm" and sign)
        bits = top if outward else top - 1
    return bits | (int(sign) << (width - 1))


def evaluate(text: str, kind: str, *inputs: Array, out: Any = None) -> Array:
    """Run `text` with %x0, %x1, ... the inputs and %y the result, one element a thread."""
    size = 4 if kind == "f32" else 2
    result = np.zeros(N, out or (np.uint32 if kind == "f32" else np.uint16))
    register = "f32" if kind == "f32" else "b16"
    lines = [f".reg .{register} %x<4>;", f".reg .b{8 * result.itemsize} %y;", "mov.u32 %r1, %tid.x;"]
    lines += ["mov.u32 %r2, %ctaid.x;", "mad.lo.u32 %r1, %r2, 128, %r1;", "cvt.u64.u32 %rd1, %r1;"]
    for i in range(len(inputs)):
        lines += [f"ld.param.u64 %rd2, [p{i + 1}];", f"mad.lo.u64 %rd3, %rd1, {size}, %rd2;"]
        lines += [f"ld.global.{'f32' if kind == 'f32' else 'b16'} %x{i}, [%rd3];"]
    lines += [text, "ld.param.u64 %rd2, [p0];", f"mad.lo.u64 %rd3, %rd1, {result.itemsize}, %rd2;"]
    lines += [f"st.global.b{8 * result.itemsize} [%rd3], %y;"]
    ptx = kernel("\n".join(lines), *["u64"] * (1 + len(inputs)))
    assert not run(ptx, "k", N // 128, 128, [result, *inputs], sanitize=False)
    return result


def check(got: Array, want: list[int | None]) -> None:
    bad = [(i, hex(int(g)), hex(w)) for i, (g, w) in enumerate(zip(got, want, strict=True)) if w is not None and int(g) != w]
    assert not bad, bad[:5]


MODES = ("rn", "rz", "rm", "rp")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", ["add", "mul", "fma", "div"])
def test_f32_arithmetic_rounds_once_in_every_direction(operation: str, mode: str) -> None:
    inputs = [operands("f32") for _ in range(3 if operation == "fma" else 2)]
    if operation == "div":
        inputs[1] = np.where((inputs[1] & 0x7FFFFFFF) == 0, 0x3F800000, inputs[1]).astype(np.uint32)
    sources = ", ".join(f"%x{i}" for i in range(len(inputs)))
    got = evaluate(f".reg .f32 %z; {operation}.{mode}.f32 %z, {sources}; mov.b32 %y, %z;", "f32", *inputs)
    values = [exact(x, "f32") for x in inputs]
    work: dict[str, Any] = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "fma": lambda a, b, c: a * b + c,
        "div": lambda a, b: a / b,
    }
    check(got, [round_to(work[operation](*v), "f32", mode) for v in zip(*values, strict=True)])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("operation", ["add", "mul", "fma"])
def test_narrow_arithmetic_rounds_once(operation: str, kind: str) -> None:
    inputs = [operands(kind) for _ in range(3 if operation == "fma" else 2)]
    sources = ", ".join(f"%x{i}" for i in range(len(inputs)))
    got = evaluate(f"{operation}.rn.{kind} %y, {sources};", kind, *inputs)
    values = [exact(x, kind) for x in inputs]
    work: dict[str, Any] = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "fma": lambda a, b, c: a * b + c}
    check(got, [round_to(work[operation](*v), kind, "rn") for v in zip(*values, strict=True)])


@pytest.mark.parametrize(("kind", "mode"), [("f16", m) for m in MODES] + [("bf16", "rn"), ("bf16", "rz")])
def test_f32_to_a_narrow_type_rounds_once(kind: str, mode: str) -> None:
    x = operands("f32")
    x[: N // 2] = (x[: N // 2] & 0x80FFFFFF) | (rng.integers(100, 144, size=N // 2).astype(np.uint32) << 23 & 0x7F000000)
    got = evaluate(f"cvt.{mode}.{kind}.f32 %y, %x0;", "f32", x, out=np.uint16)
    check(got, [round_to(v, kind, mode) for v in exact(x, "f32")])


@pytest.mark.parametrize("mode", MODES)
def test_integers_and_doubles_become_f32_in_every_direction(mode: str) -> None:
    x = operands("f32")
    got = evaluate(f".reg .f32 %z; mov.b32 %r9, %x0; cvt.{mode}.f32.s32 %z, %r9; mov.b32 %y, %z;", "f32", x)
    check(got, [round_to(Fraction(int(v)), "f32", mode) for v in x.view(np.int32)])
    wide = ".reg .f32 %z; cvt.f64.f32 %fd1, %x0; mul.rn.f64 %fd1, %fd1, 0d3FD5555555555555; "
    got = evaluate(wide + f"cvt.{mode}.f32.f64 %z, %fd1; mov.b32 %y, %z;", "f32", x)
    doubles = x.view(np.float32).astype(np.float64) * float.fromhex("0x1.5555555555555p-2")
    check(got, [round_to(Fraction(float(v)), "f32", mode) for v in doubles])


def test_double_to_half_does_not_round_twice() -> None:
    # 1 + 2^-11 + 2^-40 is just above a tie of f16; through f32 it would be the tie itself, and go to even.
    tie = "mov.f64 %fd1, 0d3FF0020000001000; cvt.rn.f16.f64 %y, %fd1;"
    x = np.zeros(N, np.uint16)
    assert set(evaluate(tie, "f16", x)) == {0x3C01}


def test_nothing_is_contracted_into_fma() -> None:
    a, b = operands("f32"), operands("f32")
    got = evaluate(".reg .f32 %z; mul.rn.f32 %z, %x0, %x1; add.rn.f32 %z, %z, %x0; mov.b32 %y, %z;", "f32", a, b)
    with np.errstate(all="ignore"):
        want = a.view(np.float32) * b.view(np.float32) + a.view(np.float32)
    finite = np.isfinite(want)
    assert np.array_equal(got[finite], want[finite].view(np.uint32))


def test_nan_results_are_the_hardwares_nan_where_the_bits_are_seen() -> None:
    x = np.full(N, 0xFFC12345, np.uint32)
    got = evaluate(".reg .f32 %z; add.rn.f32 %z, %x0, %x0; mul.rn.f32 %z, %z, %x0; mov.b32 %y, %z;", "f32", x)
    assert set(got) == {0x7FFFFFFF}
    assert set(evaluate("mov.b32 %y, %x0;", "f32", x)) == {0xFFC12345}
