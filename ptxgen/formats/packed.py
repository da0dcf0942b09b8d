"""What a format decodes to for `dp4a`: runs of packed 8-bit codes with their scales. The contract is in format.py; which lane
takes which fragment is a strategy's business (ptxgen/kernels/gemv)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.memory import GlobalArray
from ptxgen.types import U32
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

NIBBLES = 0x0F0F0F0F
HIGH_NIBBLES = 0xF0F0F0F0


class Run(NamedTuple):
    """Consecutive weights of one scale, inside a block of 32 values: weight i is scale * code i - minimum.

    offset: from the first value of the fragment. words: u32 with four codes each, the first code lowest. signed: whether codes
    are s8 or u8. scale, minimum: f32; minimum None where it is 0 for every weight of the format."""

    offset: int
    words: Sequence[Value]
    signed: bool
    scale: Value
    minimum: Value | None = None


def stream(k: KernelBuilder, codes: GlobalArray, nbytes: int) -> tuple[Value, ...]:
    """The first `nbytes` bytes of 16-byte aligned `codes` as u32, in loads of 16 bytes that leave the L1 cache to others: a
    weight is read once."""
    words: list[Value] = []
    for offset in range(0, nbytes, 16):
        words += k.load_vector(codes[offset], 4, U32, nc=True, evict="L1::no_allocate")
    return tuple(words)


def low_nibbles(words: Sequence[Value]) -> list[Value]:
    return [word & NIBBLES for word in words]


def high_nibbles(words: Sequence[Value]) -> list[Value]:
    """In place: 16 times the codes, which the scale makes good, so that no shift is needed."""
    return [word & HIGH_NIBBLES for word in words]
