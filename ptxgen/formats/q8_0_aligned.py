"""Q8_0_ALIGNED: the values of Q8_0 in blocks of 272 bytes, eight of its blocks and no byte more, which keep every load aligned:
256 codes, then the eight scales. No file has it: it is made of Q8_0 when weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import q8_0 as q8_0  # which must be registered first
from ptxgen.formats.codes import centred, load_codes, load_scale, split_scales
from ptxgen.formats.format import Decoder, LaneAddress, RepackedFormat, Weight, register_format, registered
from ptxgen.formats.half_blocks import BLOCKS, byte_halves, weights_of
from ptxgen.formats.half_weights import ONCE, STEPS, HalfWeights
from ptxgen.formats.packed import PREFETCH, Run, fetch, load_pieces, low_half, pieces
from ptxgen.types import S8, U16, U32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CODES, _SCALES = 0, 256  # byte offsets in the block
_CODE_BYTES, _SCALE_BYTES = 32, 2  # of a group
_FRAGMENT = 16

_SIGNS = 0x80808080


@register_format
class Q80Aligned(RepackedFormat):
    """A group is a block of Q8_0: byte j of its 32 is value j, and its f16 is the number of the group. So a fragment is one
    load of 16 bytes and one of two, of the 16 weights that a lane has of Q8_0 in the same step: products by dp4a have the bits
    that they have of Q8_0. In f32 that is so where lanes take a column each and a warp has the row; a reader of several
    columns, or of one where several warps share a row, takes eight blocks of Q8_0 as one, so sums are in another order."""

    name = "Q8_0_ALIGNED"
    id = "q8_0_aligned"
    native = registered()["Q8_0"]
    block = 256
    block_bytes = 272
    groups = 8
    columns = 32
    depth = 1
    widths = (1, 2, 4)
    packed_width = _FRAGMENT
    half_run = 4
    repack_threads = 16

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        shared = replace(place, lane=place.block)

        def decode(group: Index) -> list[Weight]:
            d = load_scale(k, shared.at(_SCALES, group, _SCALE_BYTES), 0)
            codes = place.at(_CODES, group, _CODE_BYTES)
            if width == 1:
                return [Weight(0, k.f32(k.load(codes[0], S8)) * d)]
            word = load_codes(k, codes, width) ^ _SIGNS
            return [Weight(i, number * d) for i, number in enumerate(centred(k, word, width, 128))]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        scales = replace(place, lane=place.block).at(_SCALES, group, _SCALE_BYTES)
        codes = load_pieces(k, pieces(place.at(_CODES, group, _CODE_BYTES), _FRAGMENT))
        return (*codes, fetch(k, scales[0], U16))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        return [Run(0, raw[:-1], True, low_half(k, raw[-1]))]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        """The lane's word of each step, then all scales, which the lanes of a quad share."""
        mine = window.at(lane[0] * 4)
        words = (k.load(mine[16 * step], U32, nc=True, prefetch=PREFETCH, **ONCE) for step in range(STEPS))
        return (*words, *load_pieces(k, pieces(window.at(_SCALES), BLOCKS * _SCALE_BYTES)))

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        words = cache(lambda block: [word ^ _SIGNS for word in raw[2 * block : 2 * block + 2]])
        scales = [scale for word in raw[STEPS:] for scale in split_scales(k, word)]
        return weights_of(scales, byte_halves(k, words, 128))

    def repack(self, k: KernelBuilder, native: GlobalArray, block: GlobalArray, thread: Value) -> None:
        """A thread makes the codes of a fragment; the first of two that have a block of Q8_0 copies its scale, too."""
        number, upper = thread >> 1, thread & 1
        source = native.at(number * self.native.block_bytes)
        codes = source.at(upper * _FRAGMENT).at(2)
        words = [load_codes(k, codes.at(offset), 4, align=2) for offset in range(0, _FRAGMENT, 4)]
        k.store(replace(block.at(thread * _FRAGMENT)[_CODES], dtype=U32), words)
        with k.when(upper == 0):
            k.store(replace(block.at(number * _SCALE_BYTES)[_SCALES], dtype=U16), k.load(source[0], U16))

    def pack(self, native: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import numpy as np

        blocks = native.reshape(-1, self.groups, self.native.block_bytes)
        scales, codes = (part.reshape(len(blocks), -1) for part in np.split(blocks, [_SCALE_BYTES], axis=2))
        return np.concatenate([codes, scales], axis=1).reshape(*native.shape[:-1], -1)

    def unpack_native(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        import numpy as np

        blocks = raw.reshape(-1, self.block_bytes)
        codes, scales = (part.reshape(len(blocks), self.groups, -1) for part in np.split(blocks, [_SCALES], axis=1))
        return np.concatenate([scales, codes], axis=2).reshape(*raw.shape[:-1], -1)
