"""Q6_K: 256 values of 6 bits, an 8-bit scale for every 16: 128 bytes of low nibbles, 64 bytes of top bit pairs, 16 signed
scales, f16 d. A weight is (d * scale) * (code - 32). Its 210 bytes keep only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.formats.codes import centred, load_codes, load_scale, merge, move_bit, nibble_bytes
from ptxgen.formats.format import Decoder, Format, Place, ScaleField, Weight, known
from ptxgen.formats.packed import NIBBLES, Run, low_half
from ptxgen.memory import Index
from ptxgen.types import S8, U16
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

_NIBBLES, _PAIRS, _SCALES, _D = 0, 128, 192, 208  # byte offsets in the block


# Of four packed codes: their top bit pairs, the bit above them, their bias.
_TOP_PAIRS, _TOP_BITS, _BIASES = 0x30303030, 0x80808080, 0x20202020


@known
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
    packed_width = 4

    def reader(self, k: KernelBuilder, place: Place, width: int = 1) -> Decoder:
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

    def load_packed(self, k: KernelBuilder, place: Place, group: Index) -> tuple[Value, ...]:
        scales = place.block.at(_SCALES).at(place.column // 16)
        mine = scales.at(group * 8)
        regions = (place.at(_NIBBLES, group, 64), place.at(_NIBBLES + 32, group, 64), place.at(_PAIRS, group, 32))
        # Only 2-byte aligned, so each word is loaded in halves.
        halves = [k.load(region[offset], U16, nc=True) for region in regions for offset in (0, 2)]
        return (*halves, *(k.load(mine[2 * t], S8, nc=True) for t in range(4)), k.load(place.block[_D], U16, nc=True))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        words = [k.prmt(low, high, 0x5410) for low, high in zip(raw[0:6:2], raw[1:6:2], strict=True)]
        *nibbles, pairs = words
        d = low_half(k, raw[-1])
        runs = []
        for t in range(4):
            nibble = nibbles[t % 2] >> 4 if t >= 2 else nibbles[t % 2]
            code = merge(k, move_bit(pairs, 2 * t, 4), _TOP_PAIRS, merge(k, nibble, NIBBLES, _TOP_BITS))
            # Top bits set, so that no byte borrows from the next when all are lowered by 32.
            signed = (code - _BIASES) ^ _TOP_BITS
            runs.append(Run(32 * t, [signed], True, k.f32(raw[6 + t]) * d))
        return runs
