"""How a warp, or several together, goes along a row of blocks, one byte column or some adjacent ones a lane. What it does with
the weights is the caller's business.

A step takes as many whole blocks as the lanes have columns for: for 32 lanes of one column each two blocks of Q4_0 (16
columns), one of Q8_0 or Q4_K (32 columns), 32 of F32 (one column). So consecutive lanes read consecutive bytes, and
consecutive activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.formats.format import LaneAddress, Weight
from ptxgen.target import WARP_SIZE

Part = TypeVar("Part", bound=GlobalArray | SharedPart)
"""An array in global or in shared memory, from some element on."""


@dataclass(frozen=True)
class IterationSpace:
    """The steps over a row of `k` values of a format by `lanes` lanes: a warp, or all warps of a block of threads. Each takes
    `width` columns at once, one of the format's `widths`."""

    format: Format
    k: int
    lanes: int = WARP_SIZE
    width: int = 1

    @property
    def blocks(self) -> int:
        """Blocks of a step."""
        return self.lanes * self.width // self.format.columns

    @property
    def values(self) -> int:
        """Values of a step."""
        return self.blocks * self.format.block

    @property
    def lane_values(self) -> int:
        """Values of a step that one lane decodes."""
        return self.values // self.lanes

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
        number = k.lane if self.lanes == WARP_SIZE else k.tid.x
        columns, width = self.format.columns, self.width
        if columns < width:
            return Lane(self, number * (width // columns), 0)
        sharing = columns // width
        if sharing == 1:
            return Lane(self, number, 0)
        if sharing == self.lanes:
            return Lane(self, 0, _times(number, width))
        return Lane(self, number // sharing, _times(number % sharing, width))


def _times(value: Value, factor: int) -> Value:
    return value if factor == 1 else value * factor


@dataclass(frozen=True)
class Lane:
    """Which block of a step a lane reads, and its (first) column there: constants or u32."""

    space: IterationSpace
    block: Index
    column: Index

    @property
    def takes_rest(self) -> Value:
        """The lanes that have a block in the last, partial step."""
        if isinstance(self.block, int):
            raise ValueError(f"a row of {self.space.format} has no partial step")
        return self.block < self.space.rest

    def in_row(self, row: GlobalArray) -> GlobalArray:
        """The lane's block of the first step, of a row of bytes."""
        return advance(row, self.block, self.space.format.block_bytes)

    def in_vector(self, vector: Part) -> Part:
        """The activation of the lane's first value in the first step."""
        return advance(advance(vector, self.block, self.space.format.block), self.column, 1)

    def place(self, block: GlobalArray, column: GlobalArray) -> LaneAddress:
        """Where the lane reads: `block` is its block in some step, `column` the same `self.column` bytes further."""
        return LaneAddress(block, column, self.column)

    def reader(self, k: KernelBuilder, place: LaneAddress) -> Callable[[int], list[Weight]]:
        """Decodes the lane's weights in a group of the block at `place`, by offset from the lane's first value of the block,
        and in this order."""
        format = self.space.format
        decoder = format.reader(k, place, self.space.width)

        def decode(group: int) -> list[Weight]:
            first = group * format.columns * format.depth
            weights = [Weight(first + offset, value) for offset, value in decoder(group)]
            return sorted(weights, key=lambda weight: weight.offset)

        return decode

    def decode(self, k: KernelBuilder, block: GlobalArray, column: GlobalArray) -> Iterator[Weight]:
        """The lane's weights of a step, as `reader` gives them."""
        decode = self.reader(k, self.place(block, column))
        for group in range(self.space.format.groups):
            yield from decode(group)


def advance(array: Part, index: Index, stride: int) -> Part:
    """The array that starts `index * stride` elements further: one instruction for a register, none for a constant."""
    if isinstance(index, int):
        return further(array, index * stride) if index else array
    base = array.k.op("mad" if isinstance(array, SharedPart) else "mad_wide", index, stride * array.dtype.bytes, array.base)
    return replace(array, base=base)


def further(array: Part, elements: int) -> Part:
    """The array that starts so many elements further."""
    return cast("Part", array.at(elements))


def when_below(k: KernelBuilder, number: Value, count: int, share: int) -> AbstractContextManager[None]:
    """The threads whose number is below `count`, where blocks take shares of them: all, if the last share is whole, too."""
    return nullcontext() if count % share == 0 else k.when(number < count)


def kept(k: KernelBuilder, loaded: Iterable[Sequence[Value]]) -> list[list[Value]]:
    """What was loaded in registers that `load_again` writes, in a loop."""
    return [[k.variable(value, value.type) for value in one] for one in loaded]


def load_again(k: KernelBuilder, registers: Iterable[Sequence[Value]], loaded: Iterable[Sequence[Value]]) -> None:
    """Write what was loaded to the registers of an earlier load."""
    for old, new in zip(registers, loaded, strict=True):
        for variable, value in zip(old, new, strict=True):
            k.assign(variable, value)
