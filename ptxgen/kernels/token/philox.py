"""Philox4x32-10: random bits as a function of a key and the number of the draw, the same on the host and in a kernel (Salmon et
al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.types import U32

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_WORD: Final = 0xFFFFFFFF


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Four words of 32 bits, of a counter of four and a key of two such words, the lowest first."""
    a, b, c, d = counter
    first, second = key
    for _ in range(ROUNDS):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = right >> 32 ^ b ^ first, right & _WORD, left >> 32 ^ d ^ second, left & _WORD
        first, second = (first + KEY_STEPS[0]) & _WORD, (second + KEY_STEPS[1]) & _WORD
    return a, b, c, d


def random_bits(seed: int, draw: int) -> int:
    """The 64 random bits of a draw, counted from 0: the first two words, the first one lowest. seed, draw: below 2^64."""
    low, high, *_ = philox((draw & _WORD, draw >> 32, 0, 0), (seed & _WORD, seed >> 32))
    return high << 32 | low


def emit_random_bits(k: KernelBuilder, seed: Value, draw: Value) -> Value:
    """`random_bits` in a kernel. seed, draw and the result: u64."""
    first, second = k.write("mov", [seed], result=U32)
    a, b = k.write("mov", [draw], result=U32)
    c = d = k.u32(0)
    for _ in range(ROUNDS):
        left, right = (k.write("mov", [k.mul_wide(x, by)], result=U32) for x, by in zip((a, c), MULTIPLIERS, strict=True))
        a, b, c, d = right[1] ^ b ^ first, right[0], left[1] ^ d ^ second, left[0]
        first, second = first + KEY_STEPS[0], second + KEY_STEPS[1]
    bits: Value = k.op("mov", (a, b), result=seed.type)
    return bits
