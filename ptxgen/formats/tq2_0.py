"""TQ2_0: 256 values of 2 bits with one scale, of whose codes ternary weights use three: 64 bytes of codes, f16 d. A weight is
d * (code - 1). Its 66 bytes keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import centred, load_codes, load_scale, pair_bytes
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.half_weights import BY_WORD, HalfStep, HalfWeights, biased_pair, centred_pair, lower_bytes
from ptxgen.formats.packed import Run, fetch, joined, load_u16s, low_half
from ptxgen.types import B32, U16

_CODES, _D = 0, 64  # byte offsets in the block

_PAIRS, _PAIRS_OF_HALVES = 0x03030303, 0x00030003

# 127 more than a code is 128 less one than it, with the top bit of its byte the other way round.
_LESS_ONE, _TOPS = 0x7F7F7F7F, 0x80808080


@register_format
class Tq20(Format):
    """In each half of 128 values, byte j of 32 holds values j, 32 + j, 64 + j and 96 + j, from its lowest bits on."""

    name = "TQ2_0"
    common = False
    id = "tq2_0"
    ggml_type = 35
    block = 256
    block_bytes = 66
    groups = 2
    columns = 32
    depth = 4
    widths = (1, 2, 4)
    scales = (ScaleField(_D, 0.86, signed=True),)
    packed_width = 16
    half_run = 64

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, _D)

        def decode(group: Index) -> list[Weight]:
            word = load_codes(k, place.at(_CODES, group, 32), width, align=2)
            numbers = [centred(k, pair_bytes(word, t, width), width, 1) for t in range(4)]
            return [Weight(32 * t + i, number * d) for t in range(4) for i, number in enumerate(numbers[t])]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return (*load_u16s(k, place.at(_CODES, group, 32), 8), fetch(k, place.block[_D], U16))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        words, d = _words(k, raw[:-1]), low_half(k, raw[-1])
        return [
            Run(32 * t, [(((word >> 2 * t if t else word) & _PAIRS) + _LESS_ONE) ^ _TOPS for word in words], True, d)
            for t in range(4)
        ]

    def half_lane(self, k: KernelBuilder, number: Value) -> tuple[Value, ...]:
        """The number, and how many bits the lane's codes stand high in their bytes."""
        return number, (number & 1) * 4

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        """The codes of the lane's half of the values, of which it takes two in a byte; d."""
        return (*load_u16s(k, window.at((lane[0] >> 1) * 32).at(_CODES), 16), fetch(k, window[_D], U16))

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        words = lower_bytes([word >> lane[1] for word in _words(k, raw[:-1])])

        def step(number: int) -> HalfStep:
            second, word = divmod(number, 8)
            biased = (biased_pair(k, one, _PAIRS_OF_HALVES << 2 * second) for one in words(word))
            first, other = (k.bits(centred_pair(k, pair, 1, 2 * second), B32) for pair in biased)
            return HalfStep((first, other))

        return HalfWeights([low_half(k, raw[-1])], step, BY_WORD)


def _words(k: KernelBuilder, loaded: Sequence[Value]) -> list[Value]:
    return [joined(k, *loaded[i : i + 2]) for i in range(0, len(loaded), 2)]
