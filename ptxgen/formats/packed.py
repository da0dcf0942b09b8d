"""What a format decodes to for `dp4a`: runs of packed 8-bit codes with their scales. The contract is in format.py; which lane
takes which fragment is a strategy's business (ptxgen/kernels/gemv)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.types import F16, U16, U32, DType

Bytes = GlobalArray | SharedPart
"""A block, or from some byte of it on, wherever it lies."""

NIBBLES = 0x0F0F0F0F
HIGH_NIBBLES = 0xF0F0F0F0

ACROSS = 8
"""Bytes of a piece of `load_across`."""

# A whole line of the L2 cache at a time: a warp's steps want all of it.
PREFETCH = "L2::128B"


class Run(NamedTuple):
    """Consecutive weights of one scale, inside a block of 32 values: weight i is scale * code i - minimum.

    offset: from the first value of the fragment. words: u32 with four codes each, the first code lowest. signed: whether codes
    are s8 or u8. scale, minimum: f32; minimum None where it is 0 for every weight of the format."""

    offset: int
    words: Sequence[Value]
    signed: bool
    scale: Value
    minimum: Value | None = None


def fetch(k: KernelBuilder, place: Element, type: DType, **hints: str) -> Value:
    """Load what nobody writes while the kernel runs: from global memory through the read-only path and with these cache
    modifiers, which shared memory does not have."""
    value: Value = k.load(place, type) if place.space == "shared" else k.load(place, type, nc=True, **hints)
    return value


def fetch_words(k: KernelBuilder, place: Element, count: int, **hints: str) -> tuple[Value, ...]:
    """As `fetch`, `count` (2 or 4) u32 in one load."""
    if place.space == "shared":
        return k.load_vector(place, count, U32)
    return k.load_vector(place, count, U32, nc=True, **hints)


def region(block: Bytes, offset: int, group: Index, stride: int) -> Bytes:
    """The bytes of a group in the region at `offset` of a block, which has `stride` bytes a group."""
    return block.at(offset + group * stride) if isinstance(group, int) else block.at(group * stride).at(offset)


def load_u16s(k: KernelBuilder, place: Bytes, count: int) -> tuple[Value, ...]:
    """As `fetch`, `count` u16 from an address that is a multiple of 2."""
    return tuple(fetch(k, place[2 * i], U16) for i in range(count))


def joined(k: KernelBuilder, low: Value, high: Value) -> Value:
    """The u32 of two u16."""
    word: Value = k.prmt(low, high, 0x5410, result=U32)
    return word


def stream(k: KernelBuilder, codes: Bytes, nbytes: int, **hints: str) -> tuple[Value, ...]:
    """The first `nbytes` bytes of 16-byte aligned `codes` as u32, in loads of 16 bytes, with these cache modifiers more. They
    go through the L1 cache although a weight is read once: a lane's two loads share sectors and lines, which would else be
    fetched twice (benchmarks/LOG.md)."""
    return load_pieces(k, pieces(codes, nbytes), **hints)


class BlockPiece(NamedTuple):
    """`nbytes` bytes, 8 or 16, of a block, at a multiple of as many: what one instruction loads or copies."""

    place: Element
    nbytes: int


def pieces(codes: Bytes, nbytes: int) -> tuple[BlockPiece, ...]:
    """The first `nbytes` bytes in pieces of 16."""
    return tuple(BlockPiece(codes[offset], 16) for offset in range(0, nbytes, 16))


def load_pieces(k: KernelBuilder, places: Iterable[BlockPiece], **hints: str) -> tuple[Value, ...]:
    """The u32 of all pieces. As `stream`."""
    words: list[Value] = []
    for place, nbytes in places:
        words += fetch_words(k, place, nbytes // 4, prefetch=PREFETCH, **hints)
    return tuple(words)


def low_nibbles(words: Sequence[Value]) -> list[Value]:
    """The low nibbles of all bytes, as bytes."""
    return [word & NIBBLES for word in words]


def high_nibbles(words: Sequence[Value]) -> list[Value]:
    """In place: 16 times the codes, which the scale makes good, so that no shift is needed."""
    return [word & HIGH_NIBBLES for word in words]


def load_even(k: KernelBuilder, start: Bytes, words: int) -> tuple[Value, ...]:
    """The loads of 4 * words + 2 bytes from an address that is a multiple of 2: the aligned words among them, the two bytes
    before or after these, and which of the two. `even_words` puts them in order. `start` is a multiple of 4 past its base."""
    odd = k.u32(start.base) & 2
    aligned = start.at(odd)
    half = fetch(k, start.at((2 - odd) * (2 * words))[0], U16)
    return (*(fetch(k, aligned[4 * i], U32) for i in range(words)), half, odd)


def even_words(k: KernelBuilder, raw: Sequence[Value]) -> tuple[Value, list[Value]]:
    """The first two bytes, as the low half of a u32 (the high half is anything), and the words that follow."""
    *words, half, odd = raw
    shift = (odd ^ 2) << 3
    ordered = shifted_down(k, (*words, half), shift)
    return k.select(odd == 0, words[0], half), ordered


def load_across(k: KernelBuilder, start: Bytes, nbytes: int) -> tuple[Value, ...]:
    """The aligned pieces of ACROSS bytes that the `nbytes` bytes (a multiple of ACROSS) from `start` on lie in, as u32: fewer
    loads than of words and halves. `start` is a multiple of ACROSS past its base, which is a multiple of 2. Under ACROSS bytes
    before these, and up to ACROSS behind, must be readable. `cut_out` gives those that were wanted."""
    pieces = replace(start, base=start.base & (2**start.base.type.bits - ACROSS))
    places = range(0, nbytes + ACROSS, ACROSS)
    return tuple(word for at in places for word in fetch_words(k, pieces[at], ACROSS // 4, prefetch=PREFETCH))


def cut_out(k: KernelBuilder, raw: Sequence[Value], behind: Value, bits: Value | int) -> list[Value]:
    """The words of `load_across` that begin `behind` bytes (even, below ACROSS) and `bits` (below 16) after the first."""
    far = (behind & 4) != 0
    words = [k.select(far, after, word) for word, after in pairwise(raw)]
    return shifted_down(k, words, ((behind & 2) << 3) + bits)


def shifted_down(k: KernelBuilder, words: Sequence[Value], bits: Value) -> list[Value]:
    """All words but the last, each so many bits (below 32) further in the row of words."""
    return [k.shf(a, b, bits, direction="r", mode="wrap") for a, b in pairwise(words)]


def low_half(k: KernelBuilder, word: Value) -> Value:
    """The f16 in the low half of a u32, as f32."""
    low, _ = k.write("mov", [word], result=F16)
    return k.f32(low)


def nibbles(words: Sequence[Value]) -> list[Value]:
    """The low nibbles of all words, then the high ones: the order of values in the formats of 32."""
    return low_nibbles(words) + [(word >> 4) & NIBBLES for word in words]
