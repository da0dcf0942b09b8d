"""Chooses tokens of rows as argmax and sample_token do, among those that are allowed: bits that a grammar has computed, so that
the logits need not go to the host for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.registry import register
from ptxgen.kernels.token.argmax import BatchedArgMax
from ptxgen.kernels.token.sample_token import BatchedSampleToken
from ptxgen.types import U32

WORD: Final = 32
"""Tokens of a word: token i is allowed if bit i % 32 of word i // 32 is 1."""


def words(n: int) -> int:
    """Words of a row of n tokens; bits behind the last token mean nothing."""
    return -(-n // WORD)


@register
@dataclass(frozen=True)
class AllowedArgMax(BatchedArgMax):
    """out[i] = the index of the largest of row i of x that is allowed, for m rows: batched_argmax under a mask of bits.

    allowed: u32[m, n / 32 rounded up]: value j of row i is allowed if bit j % 32 of [i, j // 32] is 1. -infinity is added to
    the others, so a NaN counts wherever it is, and infinity that is not allowed is one. If all are -infinity, the index is 0.
    """

    name = "batched_allowed_argmax"

    def signature(self) -> Signature:
        return {**super().signature(), "allowed": read(U32, self.m, words(self.n))}

    def _load(self, k: KernelBuilder, x: GlobalArray, place: Value) -> list[Value]:
        """As many neighbours as a load has, which are of one word."""
        bits = k.load(k.arg.allowed.at(k.ctaid.y, 0)[place // WORD]) >> (place % WORD)
        return [value + _penalty(k, bits, number) for number, value in enumerate(super()._load(k, x, place))]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return super().reference(x=_restricted(**arguments))

    def work(self) -> Work:
        return _with_bits(super().work(), self.m, self.n)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return super().inputs(rng) | {"allowed": _some(rng, self.m, self.n)}


@register
@dataclass(frozen=True)
class AllowedSampleToken(BatchedSampleToken):
    """out[i] = the allowed token of row i of x that its random number chooses: batched_sample_token under a mask of bits.

    allowed: u32[m, n / 32 rounded up], as in batched_allowed_argmax; nothing of a row that is left out is read. Where all are
    -infinity, the token is 0xFFFFFFFF, as where one is NaN.
    """

    name = "batched_allowed_sample_token"

    def signature(self) -> Signature:
        return {**super().signature(), "allowed": read(U32, self.m, words(self.n), partial=True)}

    def _seen(self, k: KernelBuilder, x: Value, start: Value, offset: int) -> Value:
        place = start + offset
        bits = k.load(k.arg.allowed.at(k.ctaid.x, 0)[place // WORD]) >> (place % WORD)
        return super()._seen(k, x + _penalty(k, bits, 0), start, offset)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return super().reference(**(arguments | {"x": _restricted(**arguments)}))

    def work(self) -> Work:
        return _with_bits(super().work(), self.m, self.n)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return super().inputs(rng) | {"allowed": _some(rng, self.m, self.n)}


def _penalty(k: KernelBuilder, bits: Value, number: int) -> Value:
    """f32: 0 where this bit is 1, else -infinity."""
    return k.select((bits & (1 << number)) != 0, k.f32(0.0), float("-inf"))


def _restricted(x: NDArray[np.float32], allowed: NDArray[np.uint32], **_: Any) -> NDArray[np.float32]:
    bits = np.unpackbits(allowed.view(np.uint8), axis=1, bitorder="little")[:, : x.shape[1]]
    with np.errstate(invalid="ignore"):
        return x + np.where(bits == 1, np.float32(0), np.float32(-np.inf))


def _with_bits(work: Work, m: int, n: int) -> Work:
    return Work(flops=work.flops + m * n, bytes=work.bytes + m * words(n) * U32.bytes)


def _some(rng: np.random.Generator, m: int, n: int) -> NDArray[np.uint32]:
    """Bits by chance, in each row more of them; in the first, one in 16."""
    chances = rng.random((m, n)) < (np.arange(m)[:, None] * 4 + 1) / 16
    chances[:, n // 2] = True
    bits = np.zeros((m, words(n) * WORD), np.bool_)
    bits[:, :n] = chances
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
