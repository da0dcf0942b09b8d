"""How a warp goes along a row of blocks, one byte column a lane. What it does with the weights is the caller's business.

A step takes as many whole blocks as 32 lanes have columns for: two blocks of Q4_0 (16 columns each), one of Q8_0 or Q4_K (32
columns), 32 of F32 (one each). So consecutive lanes read consecutive bytes, and consecutive activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptxgen.cooperation import WARP
from ptxgen.formats import Format
from ptxgen.formats.format import Place, Weight
from ptxgen.memory import GlobalArray, Index
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder


@dataclass(frozen=True)
class Walk:
    """The steps over a row of `k` values of a format."""

    format: Format
    k: int

    @property
    def blocks(self) -> int:
        """Blocks of a step."""
        return WARP // self.format.columns

    @property
    def values(self) -> int:
        """Values of a step."""
        return self.blocks * self.format.block

    @property
    def lane_values(self) -> int:
        """Values of a step that one lane decodes."""
        return self.values // WARP

    @property
    def bytes(self) -> int:
        """Bytes of a step."""
        return self.blocks * self.format.block_bytes

    @property
    def steps(self) -> int:
        """Whole steps of a row."""
        return self.k // self.values

    @property
    def rest(self) -> int:
        """Blocks left after the whole steps: fewer than a step has."""
        return self.k % self.values // self.format.block

    def lane(self, k: KernelBuilder) -> Lane:
        """The place of each lane in a step."""
        columns = self.format.columns
        if columns == WARP:
            return Lane(self, 0, k.lane)
        if columns == 1:
            return Lane(self, k.lane, 0)
        return Lane(self, k.lane // columns, k.lane % columns)


@dataclass(frozen=True)
class Lane:
    """Which block of a step a lane reads, and its column there: constants or u32."""

    walk: Walk
    block: Index
    column: Index

    @property
    def takes_rest(self) -> Value:
        """The lanes that have a block in the last, partial step."""
        if isinstance(self.block, int):
            raise ValueError(f"a row of {self.walk.format} has no partial step")
        return self.block < self.walk.rest

    def in_row(self, row: GlobalArray) -> GlobalArray:
        """The lane's block of the first step, of a row of bytes."""
        return advance(row, self.block, self.walk.format.block_bytes)

    def in_vector(self, vector: GlobalArray) -> GlobalArray:
        """The activation of the lane's first value in the first step."""
        return advance(advance(vector, self.block, self.walk.format.block), self.column, 1)

    def decode(self, k: KernelBuilder, block: GlobalArray, column: GlobalArray) -> Iterator[Weight]:
        """The lane's weights of a step; offsets are from the lane's first value. `block` is the lane's block in this step,
        `column` the same `self.column` bytes further."""
        format = self.walk.format
        decoder = format.reader(k, Place(block, column, self.column))
        for group in range(format.groups):
            for offset, weight in decoder(group):
                yield Weight(group * format.columns * format.depth + offset, weight)


def advance(array: GlobalArray, index: Index, stride: int) -> GlobalArray:
    """The array that starts `index * stride` elements further: one instruction for a register, none for a constant."""
    if isinstance(index, int):
        return array.at(index * stride) if index else array
    return replace(array, base=array.k.op("mad_wide", index, stride * array.dtype.bytes, array.base))
