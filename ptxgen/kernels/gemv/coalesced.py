"""The coalesced GEMV: one warp a row and one byte column a lane, as the basic one, but the headers of several super-blocks are
loaded by one instruction, a word a lane, and reach the other lanes by shuffles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from ptxgen.formats.format import LaneAddress
from ptxgen.kernels.gemv.dot import Dot, LaneDot, Reader
from ptxgen.kernels.gemv.gemv_type import model_cases
from ptxgen.kernels.gemv.iteration import IterationSpace, Part, advance
from ptxgen.kernels.gemv.warp_row import WarpRowGemv
from ptxgen.kernels.registry import register
from ptxgen.target import WARP_SIZE
from ptxgen.types import U32

WORDS = 4
"""u32 of a header: the two f16, and the three with scales and minima."""

HEADER = WORDS * U32.bytes

TOGETHER = WARP_SIZE // WORDS
"""Headers that a warp loads at once."""

RESIDENT = 6


class _ShuffledHeaders(LaneDot[Part]):
    """A lane's dot product where all lanes share every block."""

    def readers(self, row: GlobalArray, steps: int) -> Iterator[Reader]:
        k, space = self.k, self.dot.space
        # The lanes that are left over load the last header again, so that the load needs no branch.
        block = k.lane // WORDS if steps == TOGETHER else k.min(k.lane // WORDS, steps - 1)
        word = k.load(advance(advance(row, block, space.bytes), k.lane % WORDS, U32.bytes)[0], U32)
        column = advance(row, self.lane.column, 1)
        for step in range(steps):
            header = [k.shuffle(word, step * WORDS + i) for i in range(WORDS)]
            offset = step * space.bytes
            yield self.lane.reader(k, _KnownHeader(row.at(offset), column.at(offset), self.lane.column, header))


@dataclass(frozen=True)
class _KnownHeader(LaneAddress):
    """A place whose block's header is in registers."""

    words: Sequence[Value]

    def header(self, k: KernelBuilder, words: int) -> Sequence[Value]:
        return self.words[:words]


@register(format=[format for format in FORMATS.values() if format.header_bytes == HEADER])
@dataclass(frozen=True)
class CoalescedGemv(WarpRowGemv):
    """y = W x, coalesced: one warp a row; a lane loads one word of scales, which shuffles hand to the others.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values, whose blocks start with a header of 16 bytes; x: f32[k]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format.header_bytes != HEADER:
            names = ", ".join(format.name for format in FORMATS.values() if format.header_bytes == HEADER)
            raise ArgumentError(
                f"{self.name}: blocks must start with a header of {HEADER} bytes, as those of {names} do; {self.format} has "
                f"{self.format.header_bytes or 'none'}"
            )

    name_pattern = "coalesced_{format}_gemv"
    lane_dot = _ShuffledHeaders
    resident = RESIDENT

    @property
    def dot(self) -> Dot:
        space = IterationSpace(self.format, self.k)
        return Dot(space, pass_values=TOGETHER * space.lane_values)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[CoalescedGemv]:
        return model_cases(cls, fixed, (4096, 11), (256, 1), (1536, 13), (18944, 3))
