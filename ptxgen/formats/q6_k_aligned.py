"""Q6_K_ALIGNED: the values of Q6_K in blocks of 224 bytes, 6.7 % more than Q6_K's 210, which keep every load aligned: 128 bytes
of nibbles, 64 of pairs of bits, 32 of scales. No file has it: it is made of Q6_K when weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import q6_k as q6_k  # which must be registered first
from ptxgen.formats.codes import centred, load_codes, load_scale, merge, move_bit, nibble_bytes
from ptxgen.formats.format import Decoder, LaneAddress, RepackedFormat, Weight, register_format, registered
from ptxgen.formats.half_weights import (
    BY_WORD,
    ONCE,
    THOUSANDS,
    HalfStep,
    HalfWeights,
    biased_pair,
    centred_pair,
    exact_product,
    lower_bytes,
    signed_integers,
)
from ptxgen.formats.packed import NIBBLES, BlockPiece, Bytes, Run, load_pieces, low_half, pieces
from ptxgen.types import S8, U16, U32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NIBBLES, _PAIRS, _SCALES = 0, 128, 192  # byte offsets in the block
_NIBBLE_BYTES, _PAIR_BYTES, _SCALE_BYTES = 32, 16, 8  # of a group
_REGIONS = ((_NIBBLES, _NIBBLE_BYTES), (_PAIRS, _PAIR_BYTES), (_SCALES, _SCALE_BYTES))
_D = 4  # byte offset of d after a group's scales

# In a block of Q6_K: byte offsets, and how many bytes there are from a field of a byte to what the next field continues.
_NATIVE_NIBBLES, _NATIVE_PAIRS, _NATIVE_SCALES, _NATIVE_D = 0, 128, 192, 208
_NATIVE_NIBBLE_RUN, _NATIVE_PAIR_RUN = 64, 32

_CENTRE = 32

# Of four nibbles: the lower and the higher pair of bits.
_PAIR_OF_BYTES, _HIGHER_PAIR = 0x03030303, 0x0C0C0C0C

# Of four times four codes: their two highest bits, their four highest, the four and the two under these, their sign bits.
_HIGHEST, _HIGH, _MIDDLE, _LOWEST, _SIGNS = 0xC0C0C0C0, 0xF0F0F0F0, 0x3C3C3C3C, 0x0C0C0C0C, 0x80808080

# lop3's table of (a & b) ^ c.
_AND_XOR = 0x6A


class _Fields(NamedTuple):
    """How the codes of half a group are put together in halves: the mask of nibbles, which stay where they are; where pairs go,
    and their mask there; where they stand in the bytes of each 16 values; where codes begin."""

    nibbles: int
    pairs: int
    mask: int
    stands: tuple[int, int]
    begins: int


_FIRST = _Fields(0x000F000F, 4, 0x00300030, (4, 6), 0)
_SECOND = _Fields(0x00F000F0, 2, 0x000C000C, (2, 0), 2)


@register_format
class Q6KAligned(RepackedFormat):
    """A group is 64 values. Nibble byte j of its 32 holds the low four bits of value j, and over them the high four of value
    32 + j; pair byte j of its 16 holds the other two of the values 48 + j, 32 + j, j and 16 + j, from its lowest bits on. So
    codes are put together in place, or after few shifts, as bytes or as halves. Then come, for each group, its four scales, d,
    and two bytes of zeros, so that one load brings both: d stands in a block four times, where there would be padding else."""

    name = "Q6_K_ALIGNED"
    id = "q6k_aligned"
    native = registered()["Q6_K"]
    block = 256
    block_bytes = 224
    groups = 4
    columns = 32
    depth = 2
    widths = (1, 2, 4)
    packed_width = 32
    scale_values = 16
    half_run = 64
    half_low = True
    half_bytes = 56
    repack_threads = 16

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        shared = replace(place, lane=place.block)
        # A scale serves 16 values, so the lane's column says which of two; a reader's columns do not straddle them.
        upper, column = place.column // 16, place.column % 16
        ones = 0x01010101 if width > 1 else 1

        def decode(group: Index) -> list[Weight]:
            nibbles = load_codes(k, place.at(_NIBBLES, group, _NIBBLE_BYTES), width)
            pairs = load_codes(k, shared.at(_PAIRS, group, _PAIR_BYTES).at(column), width)
            codes = (
                merge(k, pairs >> upper * 2, ones * 0x30, nibble_bytes(nibbles, 0, width)),
                merge(k, nibbles >> 2, ones * 0x3C, (pairs >> (2 - upper * 2)) & (ones * 0x03)),
            )
            mine = shared.at(_SCALES, group, _SCALE_BYTES)
            d, scales = load_scale(k, mine, _D), mine.at(upper)
            weights = []
            for t in range(2):
                scale = k.f32(k.load(scales.at(2 * t)[0], S8)) * d
                numbers = centred(k, codes[t], width, _CENTRE)
                weights += [Weight(32 * t + i, number * scale) for i, number in enumerate(numbers)]
            return weights

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        shared = replace(place, lane=place.block)
        return load_pieces(k, _pieces(*(shared.at(region, group, size) for region, size in _REGIONS)))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        nibbles, pairs, quarter = raw[:8], raw[8:12], low_half(k, raw[13]) * 0.25
        scales = [scale * quarter for scale in centred(k, raw[12] ^ _SIGNS, 4, 128)]
        moved = [pair << 2 for pair in pairs]

        # Bytes of four times the code, so that its bias is the sign bit. The scale makes the four good.
        def first(nibble: Value, pair: Value) -> Value:
            return k.lop3(pair, _HIGHEST, merge(k, nibble << 2, _MIDDLE, _SIGNS), _AND_XOR)

        def second(nibble: Value, pair: Value) -> Value:
            return k.lop3(nibble, _HIGH, merge(k, pair, _LOWEST, _SIGNS), _AND_XOR)

        low, high = nibbles[:4], nibbles[4:]
        parts = (first, low, moved), (first, high, pairs), (second, low, pairs), (second, high, moved)
        return [
            Run(16 * number, [code(*both) for both in zip(*words, strict=True)], True, scales[number])
            for number, (code, *words) in enumerate(parts)
        ]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return load_pieces(k, self.f16_pieces(window, lane), **ONCE)

    def f16_pieces(self, window: Bytes, lane: Sequence[Value]) -> tuple[BlockPiece, ...]:
        return _pieces(*(window.at(lane[0] * size).at(region) for region, size in _REGIONS))

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        words, scales = lower_bytes(raw[:8]), signed_integers(k, raw[12])

        def step(number: int) -> HalfStep:
            second, word = divmod(number, 8)
            fields = _SECOND if second else _FIRST
            pair, stands = raw[8 + word % 4], fields.stands[word // 4]
            tops = (move_bit(pair, stands + byte, fields.pairs) for byte in (0, 8))
            codes = (
                biased_pair(k, nibbles, fields.nibbles, merge(k, top, fields.mask, THOUSANDS))
                for nibbles, top in zip(words(word), tops, strict=True)
            )
            scale = scales[number // 4]
            one, other = (exact_product(k, scale, centred_pair(k, code, _CENTRE, fields.begins)) for code in codes)
            return HalfStep((one[0], other[0]), (one[1], other[1]))

        return HalfWeights([low_half(k, raw[13])], step, BY_WORD)

    def repack(self, k: KernelBuilder, native: GlobalArray, block: GlobalArray, thread: Value) -> None:
        """Four threads a group: each makes two words of nibbles and one of pairs, the first the scales and d, too."""
        group, word = thread >> 2, thread & 3
        half, moved = group >> 1, (group & 1) * 4
        nibbles, pairs = (native.at(half * run + word * 4) for run in (_NATIVE_NIBBLE_RUN, _NATIVE_PAIR_RUN))

        def four(place: GlobalArray) -> Value:
            """What the group has of four bytes: it shares each with the other group of the half."""
            return (load_codes(k, place, 4, align=2) >> moved) & NIBBLES

        target = block.at(group * _NIBBLE_BYTES + word * 4)
        made = []
        for upper, later in enumerate((0, 16)):
            low, high = (four(nibbles.at(_NATIVE_NIBBLES + later + further)) for further in (0, 32))
            tops = four(pairs.at(_NATIVE_PAIRS + later))  # under each other those of the low values and of the high ones
            highest = merge(k, high >> 2, _PAIR_OF_BYTES, tops & _HIGHER_PAIR)
            k.store(replace(target[_NIBBLES + later], dtype=U32), low | highest << 4)
            made += [(tops & _PAIR_OF_BYTES) << 4 + 2 * upper, (high & _PAIR_OF_BYTES) << 2 - 2 * upper]
        place = block.at(group * _PAIR_BYTES + word * 4)[_PAIRS]
        k.store(replace(place, dtype=U32), made[0] | made[1] | made[2] | made[3])
        with k.when(word == 0):
            scales = load_codes(k, native.at(group * 4).at(_NATIVE_SCALES), 4, align=2)
            d = k.load(native[_NATIVE_D], U16)
            k.store(replace(block.at(group * _SCALE_BYTES)[_SCALES], dtype=U32), [scales, d])

    def pack(self, native: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import numpy as np

        blocks = native.reshape(-1, self.native.block_bytes)
        nibbles, pairs, scales, d = np.split(blocks, [_NATIVE_PAIRS, _NATIVE_SCALES, _NATIVE_D], axis=1)
        codes = _fields(nibbles, 2, _NATIVE_NIBBLE_RUN) | _fields(pairs, 4, _NATIVE_PAIR_RUN) << 4
        halves = codes.reshape(-1, self.groups, 2, 32)
        first, second = halves[:, :, 0], halves[:, :, 1]
        tops, lows = (two_bits.reshape(-1, self.groups, 2, 16) for two_bits in (first >> 4, second & 3))
        fields = [lows[:, :, 1], lows[:, :, 0], tops[:, :, 0], tops[:, :, 1]]
        made = [
            (first & 15) | (second >> 2) << 4,
            np.bitwise_or.reduce([field << 2 * i for i, field in enumerate(fields)]),
            np.zeros((len(blocks), self.groups, _SCALE_BYTES), np.uint8),
        ]
        made[2][..., :_D] = scales.reshape(-1, self.groups, _D)
        made[2][..., _D : _D + 2] = d[:, None]
        return np.concatenate([part.reshape(len(blocks), -1) for part in made], axis=1).reshape(*native.shape[:-1], -1)

    def unpack_native(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import numpy as np

        blocks = raw.reshape(-1, self.block_bytes)
        nibbles, pairs, tails = (
            part.reshape(len(blocks), self.groups, -1) for part in np.split(blocks, [_PAIRS, _SCALES], axis=1)
        )
        tops, lows = (np.concatenate([pairs >> at & 3 for at in places], axis=2) for places in ((4, 6), (2, 0)))
        halves = [nibbles & 15 | tops << 4, (nibbles >> 4) << 2 | lows]
        codes: NDArray[np.uint8] = np.stack(halves, axis=2).reshape(len(blocks), -1)
        low, top = codes & np.uint8(15), codes >> np.uint8(4)
        made = [
            _joined(low, 2, _NATIVE_NIBBLE_RUN),
            _joined(top, 4, _NATIVE_PAIR_RUN),
            tails[..., :_D].reshape(len(blocks), -1),
            tails[:, 0, _D : _D + 2],
        ]
        return np.concatenate(made, axis=1).reshape(*raw.shape[:-1], -1)


def _pieces(nibbles: Bytes, pairs: Bytes, tail: Bytes) -> tuple[BlockPiece, ...]:
    """What a group is: eight words of nibbles, four of pairs, one of scales, and d."""
    return (*pieces(nibbles, _NIBBLE_BYTES), *pieces(pairs, _PAIR_BYTES), BlockPiece(tail[0], _SCALE_BYTES))


def _fields(packed: NDArray[np.uint8], count: int, run: int) -> NDArray[np.uint8]:
    """The values of bytes with `count` fields each, u8[blocks, bytes] -> u8[blocks, count * bytes]: field f of byte j of each
    `run` bytes is value f * run + j of as many times `count`."""
    import numpy as np

    bits = 8 // count
    fields = np.stack([packed >> bits * i & (1 << bits) - 1 for i in range(count)], axis=1)
    return fields.reshape(len(packed), count, -1, run).swapaxes(1, 2).reshape(len(packed), -1)


def _joined(values: NDArray[np.uint8], count: int, run: int) -> NDArray[np.uint8]:
    """The bytes that `_fields` gave these values of."""
    import numpy as np

    bits = 8 // count
    fields = values.reshape(len(values), -1, count, run)
    joined = np.bitwise_or.reduce([fields[:, :, i] << bits * i for i in range(count)])
    return joined.reshape(len(values), -1)  # type: ignore[no-any-return]
