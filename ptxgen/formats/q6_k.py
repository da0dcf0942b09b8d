"""Q6_K: 256 values of 6 bits, an 8-bit scale for every 16: 128 bytes of low nibbles, 64 bytes of top bit pairs, 16 signed
scales, f16 d. A weight is (d * scale) * (code - 32). Its 210 bytes keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import centred, load_codes, load_scale, merge, move_bit, nibble_bytes
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.half_weights import (
    BY_WORD,
    ONCE,
    THOUSANDS,
    HalfStep,
    HalfWeights,
    constant_pair,
    exact_product,
    lower_bytes,
    signed_integers,
)
from ptxgen.formats.packed import ACROSS, PREFETCH, Run, cut_out, fetch, load_across, low_half, shifted_down
from ptxgen.types import F16X2, S8, U16, U32

_NIBBLES, _PAIRS, _SCALES, _D = 0, 128, 192, 208  # byte offsets in the block

# Of four codes: their top bit pairs.
_TOP_PAIRS = 0x30303030

# Of four times four codes: their top bit pairs, their nibbles, their sign bits.
_HIGHEST, _MIDDLE, _SIGNS = 0xC0C0C0C0, 0x3C3C3C3C, 0x80808080

# lop3's table of (a & b) ^ c.
_AND_XOR = 0x6A

# Words that `load_across` loads of the nibbles that a fragment has its own in.
_NIBBLE_WORDS = (64 + ACROSS) // 4


# Of two halves that are to become 1024 + code.
_NIBBLE_OF_HALVES, _TOP_PAIR_OF_HALVES = 0x000F000F, 0x00300030


@register_format
class Q6K(Format):
    """In each half of 128 values, nibble byte j holds values j and 64 + j, byte 32 + j holds 32 + j and 96 + j; pair byte j
    holds the top bits of values j, 32 + j, 64 + j and 96 + j, from its lowest bits on."""

    name = "Q6_K"
    id = "q6k"
    ggml_type = 14
    block = 256
    block_bytes = 210
    groups = 2
    columns = 32
    depth = 4
    widths = (1, 2, 4)
    scales = (ScaleField(_D, 0.00073, signed=True),)
    packed_width = 32
    shared_bytes = 2
    scale_values = 16
    half_run = 64
    half_low = True

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, _D)
        # A scale serves 16 values, so the lane's column says which of two; a reader's columns do not straddle them.
        scales = place.block.at(_SCALES).at(place.column // 16)

        def decode(group: Index) -> list[Weight]:
            nibbles = [load_codes(k, place.at(_NIBBLES + 32 * part, group, 64), width, align=2) for part in range(2)]
            pairs = load_codes(k, place.at(_PAIRS, group, 32), width, align=2)
            mine = scales.at(group * 8)
            weights = []
            for t in range(4):
                scale = k.f32(k.load(mine.at(2 * t)[0], S8)) * d
                lower = nibble_bytes(nibbles[t % 2], t // 2, width)
                codes = merge(k, move_bit(pairs, 2 * t, 4), _TOP_PAIRS if width > 1 else 3 << 4, lower)
                weights += [Weight(32 * t + i, number * scale) for i, number in enumerate(centred(k, codes, width, 32))]
            return weights

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        """The nibbles and pairs of half a block, which two fragments share, in pieces that end 8 bytes before the block does at
        the latest; the fragment's scales, two by two; d; how far the block is behind a multiple of a piece's bytes."""
        half = group >> 1
        nibbles, pairs = place.at(_NIBBLES, half, 64), place.at(_PAIRS, half, 32)
        scales = place.block.at(_SCALES).at(group * 4)
        return (
            *load_across(k, nibbles, 64),
            *load_across(k, pairs, 32),
            *(fetch(k, scales[i], U16) for i in (0, 2)),
            fetch(k, place.block[_D], U16),
            k.u32(place.block.base) & (ACROSS - 2),
        )

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        """In the runs of Q6_K_ALIGNED, so that sums of products have its bits."""
        *words, two_scales, two_more, d, behind = raw
        upper = (group & 1) * 4  # the fragment's bits in bytes that it shares
        nibbles = cut_out(k, words[:_NIBBLE_WORDS], behind, upper)
        pairs = cut_out(k, words[_NIBBLE_WORDS:], behind, upper)
        quarter = low_half(k, d) * 0.25
        scales = centred(k, k.prmt(two_scales, two_more, 0x5410, result=U32) ^ _SIGNS, 4, 128)

        # Bytes of four times the code, so that its bias is the sign bit. The scale makes the four good.
        def code(nibble: Value, top: Value) -> Value:
            return k.lop3(top, _HIGHEST, merge(k, nibble << 2, _MIDDLE, _SIGNS), _AND_XOR)

        return [
            Run(
                16 * number,
                [code(nibbles[4 * number + i], pairs[number % 2 * 4 + i] << (6, 4)[number // 2]) for i in range(4)],
                True,
                scales[number] * quarter,
            )
            for number in range(4)
        ]

    def half_lane(self, k: KernelBuilder, number: Value) -> tuple[Value, ...]:
        """The number, and how many bits the lane's nibbles and pairs stand high in their bytes."""
        return number, (number & 1) * 4

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        """Of the lane's half of the values the nibbles, of which it takes one in a byte, and the pairs, of which it takes two:
        aligned words, and one more than they fill; its four scales, two by two; d; how far the first byte is behind a word."""
        number, half = lane[0], lane[0] >> 1
        odd = (k.u32(window.base) + window.offset) & 2
        aligned = replace(window, base=window.base - k.u64(odd))
        nibbles, pairs, scales = aligned.at(half * 64), aligned.at(half * 32), window.at(number * 4)
        return (
            *(k.load(nibbles[_NIBBLES + i], U32, nc=True, prefetch=PREFETCH, **ONCE) for i in range(0, 68, 4)),
            *(k.load(pairs[_PAIRS + i], U32, nc=True, prefetch=PREFETCH, **ONCE) for i in range(0, 36, 4)),
            *(k.load(scales[_SCALES + i], U16, nc=True) for i in (0, 2)),
            k.load(window[_D], U16, nc=True),
            odd,
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        *words, two_scales, two_more, d, odd = raw
        bits = (odd << 3) + lane[1]
        nibbles, pairs = lower_bytes(shifted_down(k, words[:17], bits)), shifted_down(k, words[17:], bits)
        scales = signed_integers(k, k.prmt(two_scales, two_more, 0x5410, result=U32))
        centre = constant_pair(k, -1024 - 32)

        def code(word: Value, top: Value) -> Value:
            six_bits = merge(k, top, _TOP_PAIR_OF_HALVES, merge(k, word, _NIBBLE_OF_HALVES, THOUSANDS))
            return k.bits(six_bits, F16X2) + centre

        def step(number: int) -> HalfStep:
            second, word = divmod(number, 8)
            pair = pairs[word]
            tops = (pair << 2, pair >> 6) if second else (pair << 4, pair >> 4)
            scale = scales[number // 4]
            first, other = (exact_product(k, scale, code(*both)) for both in zip(nibbles(number), tops, strict=True))
            return HalfStep((first[0], other[0]), (first[1], other[1]))

        return HalfWeights([low_half(k, d)], step, BY_WORD)
