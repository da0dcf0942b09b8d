"""Matrices out of the register fragments of float mma.sync probes, what a Hopper tensor core makes of them, and how far other
results may lie from it.

PTX leaves the order and the precision of the sum open ("at least single precision"). What an H200 does, found from the recorded
probes and the same as in Khattak and Mikaitis (2025, arXiv:2512.07004): all k products, exact, and c are shifted to the largest
exponent among them, cut off 25 bits below it, added exactly, and the sum is cut to f32. Older GPUs do the same in steps of 4 or
8 products with a bit less. The emulator adds the products one by one, each sum rounded to f32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.kernels.accuracy import UNIT
from ptxgen.target import WARP_SIZE
from tests.ptxgen.isa import probe
from tests.ptxgen.isa.running import numbers

Array = NDArray[Any]
LANES = np.arange(WARP_SIZE)
GROUP, INDEX = LANES // 4, LANES % 4


def kinds(one: probe.Probe) -> tuple[str, str, str, str]:
    """The element types of d, a, b and c."""
    d, a, b, c = one.instruction.split()[0].split(".")[-4:]
    return d, a, b, c


def elements(words: Array, type: str) -> Array:
    """The numbers in 32-bit registers, float64[..., registers, numbers in a register], lowest first."""
    words = np.ascontiguousarray(words.astype(np.uint32))[..., None]
    if type == "f16":
        return words.view(np.uint16).view(np.float16).astype(np.float64)
    if type == "bf16":
        return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if type == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return words.view(np.float32).astype(np.float64)


def matrices(one: probe.Probe, records: Array) -> tuple[Array, Array, Array]:
    """a, b and c of a float mma, float64[warps, 16, k], [warps, k, 8] and [warps, 16, 8]."""
    _, a_type, b_type, c_type = kinds(one)
    a_place, b_place, c_place = one.inputs
    a_parts = elements(numbers(records, a_place), a_type).reshape(-1, WARP_SIZE, a_place.count // 2, 2, _held(a_type))
    b_parts = elements(numbers(records, b_place), b_type).reshape(-1, WARP_SIZE, b_place.count, _held(b_type))
    warps, held = len(a_parts), _held(a_type)
    k = 4 * held * b_place.count
    a, b = np.zeros((warps, 16, k)), np.zeros((warps, k, 8))
    for group in range(b_place.count):
        for i in range(held):
            column = 4 * held * group + held * INDEX + i
            for half in range(2):
                a[:, GROUP + 8 * half, column] = a_parts[:, :, group, half, i]
            b[:, column, GROUP] = b_parts[:, :, group, i]
    return a, b, accumulator(numbers(records, c_place), c_type)


def accumulator(words: Array, type: str) -> Array:
    """c or d of a 16x8 mma, float64[warps, 16, 8]."""
    parts = elements(words, type).reshape(-1, WARP_SIZE, 2, 2)
    full = np.zeros((len(parts), 16, 8))
    for half in range(2):
        for i in range(2):
            full[:, GROUP + 8 * half, 2 * INDEX + i] = parts[:, :, half, i]
    return full


def hopper(a: Array, b: Array, c: Array) -> Array:
    """a b + c as an H200 adds it up, before the rounding of an f16 result: float64[warps, 16, 8]. For finite
    numbers whose sum is a normal f32."""
    left, right = a[:, :, None, :], b.transpose(0, 2, 1)[:, None, :, :]
    terms = np.concatenate([left * right, c[..., None]], axis=-1)
    exponents = np.concatenate([_exponent(left) + _exponent(right), _exponent(c)[..., None]], axis=-1)
    # The exponent of a product is the sum of its factors': the product may be twice as large.
    step = np.exp2(np.where(terms == 0, -1000.0, exponents).max(axis=-1, keepdims=True) - 25)
    total = (np.trunc(terms / step) * step).sum(axis=-1)
    single = total.astype(np.float32)
    too_large = np.abs(single.astype(np.float64)) > np.abs(total)
    cut: Array = np.where(too_large, np.nextafter(single, np.float32(0)), single).astype(np.float64)
    return cut


def tolerances(one: probe.Probe, records: Array) -> Array:
    """How far two results of a float mma may lie apart, in the order of the elements of d: float64[count, elements].

    In units of 2^-24 times the sum of all magnitudes, which no partial sum exceeds: the emulator rounds k times (half an ulp
    each); a GPU cuts k + 1 terms at 2^-24 or finer, and every partial sum of 4 or more products to f32 (an ulp each, and one
    term more). That is less than 3 k in all. An f16 result adds an ulp: the two may fall on different sides of a tie."""
    a, b, c = matrices(one, records)
    magnitude = np.abs(a) @ np.abs(b) + np.abs(c)
    allowed = 3 * a.shape[2] * UNIT * magnitude
    if kinds(one)[0] == "f16":
        allowed += 2.0**-10 * np.abs(a @ b + c)
    return np.stack([allowed[:, GROUP + 8 * half, 2 * INDEX + i] for half in range(2) for i in range(2)], axis=-1).reshape(
        len(records), 4
    )


def _exponent(x: Array) -> Array:
    return np.frexp(x)[1].astype(np.float64) - 1


def _held(type: str) -> int:
    return 1 if type == "tf32" else 2
