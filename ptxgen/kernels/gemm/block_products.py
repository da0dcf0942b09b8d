"""The products of a block of activations by int8 tensor cores: the integer sums of each plane, and how they become numbers that
are added to totals. The same for f16 stands in f16_products.py."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.kernels.gemm.weight_tile import TileReader
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.types import F32, S32

Columns = Sequence[Sequence[Value]]
"""The registers of the second operand of `mma` for a block of activations, by plane."""


Fours = Sequence[Sequence[Sequence[Value]]]
"""Of each part of a block with one scale: of each plane four sums, or of each of two rows a scale and a minimum."""


class BlockProducts:
    """What a lane adds for a block of weights of this format, and as many planes of activations."""

    def __init__(self, k: KernelBuilder, format: Format, digits: int) -> None:
        self.k, self.format, self.digits = k, format, digits
        self.starts = [[k.variable(_start_bits(digits, plane), S32) for _ in range(4)] for plane in range(digits)]

    def scales(self, tile: TileReader, value: int) -> list[list[tuple[Value, ...]]]:
        """The scales of a block, by part of it with one scale, and rows r and r + 8."""
        return [tile.scales(value + part) for part in range(0, BLOCK, self.format.scale_values)]

    def sums(self, codes: Sequence[Value], columns: Columns, signed: bool) -> list[list[Sequence[Value]]]:
        """The sums of a block's products, s32, by part with one scale and digit: four of the lane each."""
        parts = 2 if self.format.scale_values < BLOCK else 1
        of_codes, of_columns = len(codes) // parts, 2 // parts
        a_type: Literal["s8", "u8"] = "s8" if signed else "u8"

        def multiply(part: int, column: Sequence[Value], start: Sequence[Value]) -> Sequence[Value]:
            a = codes[part * of_codes : (part + 1) * of_codes]
            b = column[part * of_columns : (part + 1) * of_columns]
            return self.k.mma(a, b, start, a_type=a_type, b_type="s8")

        pairs = list(zip(columns, self.starts, strict=True))
        return [[multiply(part, column, start) for column, start in pairs] for part in range(parts)]

    def add_block(self, totals: Sequence[Value], sums: Fours, scales: Fours, xs: Sequence[Sequence[Value]]) -> None:
        """Add a block to the lane's four sums: x's scale times (scale times sum of products, for both halves), less the minima.
        Sum number c is of row r + 8 (c // 2) of the weights and the lane's row c % 2 of the activations."""
        k = self.k
        for c, total in enumerate(totals):
            x, *negative = xs[c % 2]
            added: Value | None = None
            for of_part, of_rows in zip(sums, scales, strict=True):
                scale = of_rows[c // 2][0]
                added = self._scaled(scale, [k.bits(of_plane[c], F32) for of_plane in of_part], added)
            assert added is not None
            new = k.fma(x, added, total)
            for of_rows, sum in zip(scales, negative, strict=False):
                new = k.fma(of_rows[c // 2][1], sum, new)
            k.assign(total, new)

    def _scaled(self, scale: Value, sums: Sequence[Value], before: Value | None) -> Value:
        """before + scale times what the sums of all planes come to. These are floats whose lower bits are the sums (`_start`),
        so no conversion is needed. Of one plane scale times its start, taken off in the fma, is exact: a scale is the product
        of an f16 and a code of 8 bits at most, and the start has two bits. Of more the first sum, less what all started with,
        is exact; so is the addition of the second where the two come to under 2^24; the last one is rounded once, if at all."""
        k, digits = self.k, self.digits
        if digits == 1 and before is None:
            scaled: Value = k.fma(scale, sums[0], scale * -_start(1, 0))
            return scaled
        number = sums[0] - sum(_start(digits, plane) for plane in range(digits))
        for other in sums[1:]:
            number = number + other
        return k.fma(scale, number, before) if before is not None else scale * number


def _start(digits: int, plane: int) -> float:
    """What the sums of a plane start with, as a float: 1.5 * 2^23 times what the plane counts. A sum of 32 products of a code
    and a plane is under 2^20 (255 * 128 * 32), so it changes the lower bits of the mantissa alone, by the unit that it counts:
    the bits are those of the float of start plus sum times 256^i."""
    return 1.5 * 2.0 ** (23 + 8 * (digits - 1 - plane))


def _start_bits(digits: int, plane: int) -> int:
    return int.from_bytes(struct.pack("<f", _start(digits, plane)), "little")
