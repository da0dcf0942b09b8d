"""MXFP4 (OCP Microscaling Formats 1.0): 32 values of 4 bits (a sign, two bits of exponent, one of mantissa) with a power of two
as their scale: one byte e, then 16 bytes of codes. A weight is 2^(e - 128) * level, where levels are twice what the codes mean.
Its 17 bytes keep no alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.code_table import CodeTable
from ptxgen.formats.codes import load_codes
from ptxgen.formats.format import Decoder, Format, LaneAddress, Weight, register_format
from ptxgen.formats.half_blocks import blocks_of, by_block, byte_halves, weights_of
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import PREFETCH, Run, fetch
from ptxgen.types import F32, U8, U32, U64

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVELS = CodeTable((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))
"""Twice the e2m1 values, as integers (kvalues_mxfp4 of ggml-common.h)."""

_UNSIGNED = LEVELS.unsigned()


@register_format
class Mxfp4(Format):
    """Byte j of the codes holds value j in its low and value j + 16 in its high nibble."""

    name = "MXFP4"
    id = "mxfp4"
    ggml_type = 39
    block = 32
    block_bytes = 17
    columns = 16
    depth = 2
    widths = (1, 2, 4)
    packed_width = 16
    half_run = 4

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        d = _power_of_two(k, k.load(place.block[0]))

        def decode(group: Index) -> list[Weight]:
            levels = LEVELS.decode(k, load_codes(k, place.at(1, group, 16), width, align=1), width)
            return [Weight(16 * t + i, levels[i][t] * d) for i in range(width) for t in range(2)]

        return decode

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        """Four aligned words, from up to three bytes before the block on; the one to four bytes that are left, the last again
        and again; how many bytes before the block. So nothing past the block is read, which may be the last of its tensor."""
        before = k.u32(place.block.base) & 3
        base = place.block.base
        aligned = replace(place.block, base=base - (k.u64(before) if base.type is U64 else before))
        words = [fetch(k, aligned[offset], U32) for offset in range(0, 16, 4)]
        rest = [fetch(k, aligned.at(k.min(before, i) if i else 0)[16], U8) for i in range(4)]
        return (*words, *rest, before)

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        words, rest, before = raw[:4], raw[4:8], raw[8]
        low, high = (k.prmt(a, b, 0x0040, result=U32) for a, b in (rest[:2], rest[2:]))
        after = (before + 1) << 3  # bits before the codes, of which 32 mean the next word as it is
        pairs = zip(words, [*words[1:], k.prmt(low, high, 0x5410, result=U32)], strict=True)
        codes = [k.shf(a, b, after, direction="r", mode="clamp") for a, b in pairs]
        e = (words[0] >> (before << 3)) & 0xFF
        return [Run(0, LEVELS.look_up_halves(k, codes), True, _power_of_two(k, e))]

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        return tuple(
            value
            for block in blocks_of(k, window, last, self.block_bytes)
            for mine in (block.at(1).at(lane[0] * 4),)
            for value in (k.load(block[0], nc=True), *(k.load(mine[i], nc=True, prefetch=PREFETCH) for i in range(4)))
        )

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        blocks = by_block(raw, 5)

        @cache
        def levels(block: int) -> list[Value]:
            low, high = (k.prmt(a, b, 0x0040, result=U32) for a, b in (blocks[block][1:3], blocks[block][3:]))
            return _UNSIGNED.look_up_halves(k, [k.prmt(low, high, 0x5410, result=U32)])

        return weights_of([_power_of_two(k, block[0]) for block in blocks], byte_halves(k, levels, 128))

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        """Of two neighbouring powers of two, each so often that the mean square of weights is 1/k."""
        import numpy as np

        blocks = super().random_blocks(rng, rows, k).reshape(-1, self.block_bytes)
        spread = 1 / np.sqrt(k * np.mean(np.square(LEVELS.values)))
        exponent = np.floor(np.log2(spread))
        larger = rng.random(len(blocks)) < ((spread / 2**exponent) ** 2 - 1) / 3
        blocks[:, 0] = 128 + exponent + larger
        return blocks.reshape(rows, -1)


def _power_of_two(k: KernelBuilder, e: Value) -> Value:
    """2^(e - 128) as f32, which is subnormal for e = 0 and 1. As in gguf-py, 255 is no NaN but the next power."""
    return k.bits(k.select(e < 2, k.u32(1 << 21) << e, (e - 1) << 23), F32)
