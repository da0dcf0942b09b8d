"""What of a row of logits is allowed: bits that a grammar has computed, so that argmax and sample_token can choose among the
tokens that they allow, and the logits need not go to the host for it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.types import U32

WORD: Final = 32
"""Tokens of a word: token i is allowed if bit i % 32 of word i // 32 is 1."""


def words(n: int) -> int:
    """Words of a row of n tokens; bits behind the last token mean nothing."""
    return -(-n // WORD)


def allowed_argument(m: int, n: int, *, partial: bool = False) -> Array:
    """`allowed` of m rows of n tokens, for signatures."""
    return read(U32, m, words(n), partial=partial)


def allowed_bits(k: KernelBuilder, row: Value, token: Value) -> Value:
    """u32: the bits of a row from this token on to the end of its word, the token's own lowest."""
    return k.load(k.arg.allowed.at(row, 0)[token // WORD]) >> (token % WORD)


def penalty(k: KernelBuilder, bits: Value, number: int) -> Value:
    """f32: 0 where this bit is 1, else -infinity."""
    return k.select((bits & (1 << number)) != 0, k.f32(0.0), float("-inf"))


def restricted(x: NDArray[np.float32], allowed: NDArray[np.uint32], **_: Any) -> NDArray[np.float32]:
    """Logits f32[m, n] with their penalties."""
    bits = np.unpackbits(allowed.view(np.uint8), axis=1, bitorder="little")[:, : x.shape[1]]
    with np.errstate(invalid="ignore"):
        return x + np.where(bits == 1, np.float32(0), np.float32(-np.inf))


def some_allowed(rng: np.random.Generator, m: int, n: int) -> NDArray[np.uint32]:
    """Bits by chance for inputs of tests, in each row more of them; in the first, one in 16."""
    chances = rng.random((m, n)) < (np.arange(m)[:, None] * 4 + 1) / 16
    chances[:, n // 2] = True
    bits = np.zeros((m, words(n) * WORD), np.bool_)
    bits[:, :n] = chances
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
