"""Q1_0: 128 signs with one scale: f16 d, then 16 bytes of bits. A weight is d where its bit is set, else -d. Its 18 bytes keep
only 2-byte alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import bit_field, load_scale
from ptxgen.formats.format import Decoder, Format, LaneAddress, ScaleField, Weight, register_format
from ptxgen.formats.grid import spread
from ptxgen.formats.packed import Run, fetch, load_u16s, low_half, region
from ptxgen.types import U16

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_D, _BITS = 0, 2  # byte offsets in the block


@register_format
class Q10(Format):
    """Bit i of the bytes, from the lowest of the first on, belongs to value i."""

    name = "Q1_0"
    common = False
    id = "q1_0"
    ggml_type = 41
    block = 128
    block_bytes = 18
    groups = 4
    columns = 32
    depth = 1
    widths = (1, 2, 4)
    scales = (ScaleField(_D, 0.96, signed=True),)
    packed_width = 32

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = load_scale(k, place.block, _D)
        column = k.u32(place.column)

        def decode(group: Index) -> list[Weight]:
            bits = k.load(region(place.block, _BITS, group, 4).at(column >> 3)[0]) >> (column & 7)
            return [Weight(i, k.select(bits & 1 << i != 0, d, -d)) for i in range(width)]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        return (*load_u16s(k, region(place.block, _BITS, group, 4), 2), fetch(k, place.block[_D], U16))

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        """A byte of -1, or of 1 where the bit is set."""
        nibbles = (bit_field(raw[i // 4], 4 * (i % 4), 4, 16) for i in range(8))
        return [Run(0, [~(spread(nibble) * 0xFE) for nibble in nibbles], True, low_half(k, raw[2]))]

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """As `dequantize_row_q1_0` of ggml-quants.c, which gguf-py lacks."""
        import numpy as np

        blocks = np.ascontiguousarray(raw).reshape(-1, self.block_bytes)
        d = blocks[:, _D:_BITS].copy().view("<f2").astype(np.float32)
        bits = np.unpackbits(blocks[:, _BITS:], axis=1, bitorder="little")
        return np.where(bits == 1, d, -d).reshape(*raw.shape[:-1], -1)
