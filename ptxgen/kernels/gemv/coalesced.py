"""The coalesced GEMV: one warp a row and one byte column a lane, as the basic one, but the headers of several super-blocks are
loaded by one instruction, a word a lane, and reach the other lanes by shuffles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.cooperation import WARP
from ptxgen.formats import find
from ptxgen.formats.format import Place
from ptxgen.kernels.gemv.dot import Dot, LaneDot, Reader
from ptxgen.kernels.gemv.walk import Lane, Part, Walk, advance
from ptxgen.kernels.gemv.warp_row import WarpRowGemv
from ptxgen.kernels.registry import register_variants
from ptxgen.memory import GlobalArray
from ptxgen.types import U32
from ptxgen.value import Value

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

WORDS = 4
"""u32 of a header: the two f16, and the three with scales and minima."""

TOGETHER = WARP // WORDS
"""Headers that a warp loads at once."""

RESIDENT = 6


@register_variants("format", {"coalesced_q4k_gemv": find("Q4_K")})
@dataclass(frozen=True)
class CoalescedGemv(WarpRowGemv):
    """y = W x, coalesced: one warp a row; a lane loads one word of scales, which shuffles hand to the others.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]."""

    @property
    def name(self) -> str:
        return f"coalesced_{self.format.id}_gemv"

    @property
    def resident(self) -> int:
        return RESIDENT

    @property
    def dot(self) -> Dot:
        walk = Walk(self.format, self.k)
        return Dot(walk, pass_values=TOGETHER * walk.lane_values)

    def lane_dot(self, k: KernelBuilder, lane: Lane, row: GlobalArray, x: Part) -> LaneDot[Part]:
        return _ShuffledHeaders(k, self.dot, lane, [row], [x])

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[CoalescedGemv]:
        for k, n in ((4096, 11), (256, 1), (1536, 13), (18944, 3)):
            yield cls(k=k, n=n, **fixed)


class _ShuffledHeaders(LaneDot[Part]):
    """A lane's dot product where all lanes share every block."""

    def readers(self, row: GlobalArray, steps: int) -> Iterator[Reader]:
        k, walk = self.k, self.dot.walk
        # The lanes that are left over load the last header again, so that the load needs no branch.
        block = k.lane // WORDS if steps == TOGETHER else k.min(k.lane // WORDS, steps - 1)
        word = k.load(advance(advance(row, block, walk.bytes), k.lane % WORDS, U32.bytes)[0], U32)
        column = advance(row, self.lane.column, 1)
        for step in range(steps):
            header = [k.shuffle(word, step * WORDS + i) for i in range(WORDS)]
            offset = step * walk.bytes
            yield self.lane.reader(k, _KnownHeader(row.at(offset), column.at(offset), self.lane.column, header))


@dataclass(frozen=True)
class _KnownHeader(Place):
    """A place whose block's header is in registers."""

    words: Sequence[Value]

    def header(self, k: KernelBuilder, words: int) -> Sequence[Value]:
        return self.words[:words]
