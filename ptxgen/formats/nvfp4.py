"""NVFP4: 64 values on MXFP4's levels with a scale of 8 bits (e4m3 without a sign) for every 16: 4 bytes of scales, 32 bytes of
codes. A weight is scale / 2 * level, where levels are twice what the codes mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import load_codes
from ptxgen.formats.format import Decoder, Format, LaneAddress, Weight, register_format
from ptxgen.formats.mxfp4 import LEVELS
from ptxgen.formats.packed import Bytes, Run, fetch, low_half
from ptxgen.types import U8, U32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CODES = 4  # byte offset in the block; the scales are before

_NUMBER = 0x7F
"""The bits of e4m3 beside its sign; all of them set are no number, which counts as 0."""

_UNIT = 2.0**7
"""Half of what an f16 with the bits of e4m3 below its sign is multiplied with: the biases of the exponents are 15 and 7."""


@register_format
class Nvfp4(Format):
    """Group g has the values 16 g to 16 g + 15: byte j of its 8 holds value j in its low and value j + 8 in its high nibble."""

    name = "NVFP4"
    common = False
    id = "nvfp4"
    ggml_type = 40
    block = 64
    block_bytes = 36
    groups = 4
    columns = 8
    depth = 2
    widths = (1, 2, 4)
    packed_width = 8
    scale_values = 16

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        def decode(group: Index) -> list[Weight]:
            d = _scale(k, k.load(_of_group(place, group)[0]))
            levels = LEVELS.decode(k, load_codes(k, place.at(_CODES, group, 8), width), width)
            return [Weight(8 * t + i, levels[i][t] * d) for i in range(width) for t in range(2)]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        codes = place.at(_CODES, group, 8)
        return (fetch(k, codes[0], U32), fetch(k, codes[4], U32), fetch(k, _of_group(place, group)[0], U8))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        *codes, scale = raw
        return [Run(0, LEVELS.look_up_halves(k, codes), True, _scale(k, scale))]

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        """The scales are the nearest that there are to what makes the mean square of weights about 1/k."""
        import numpy as np

        blocks = super().random_blocks(rng, rows, k).reshape(-1, self.block_bytes)
        bits = np.arange(_NUMBER, dtype=np.uint16)
        known = (bits << 7).view(np.float16).astype("f8") * _UNIT
        wanted = rng.uniform(0.5, 1.5, (len(blocks), self.groups)) / np.sqrt(k * np.mean(np.square(LEVELS.values)))
        blocks[:, :_CODES] = np.searchsorted((known[1:] + known[:-1]) / 2, wanted)
        return blocks.reshape(rows, -1)


def _of_group(place: LaneAddress, group: Index) -> Bytes:
    """The scale of a group."""
    return place.block.at(group)


def _scale(k: KernelBuilder, byte: Value) -> Value:
    """Half of the e4m3, as f32."""
    number = low_half(k, (byte & _NUMBER) << 7) * _UNIT
    return k.select(byte == _NUMBER, 0.0, number)
