"""Where a lane finds int8 planes of activations: in global memory, or staged in shared memory. And the sum of a fragment's
products with them, in a fixed order. What the activations mean is said in kernels/quantize/int8_planes.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.formats.packed import Run
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.types import U32

ONES = 0x01010101


class LanePlanes(ABC):
    """What a lane's fragment meets: the activations from the fragment's first value on, of one row. `count` planes."""

    def __init__(self, k: KernelBuilder, count: int) -> None:
        self.k = k
        self.count = count

    @abstractmethod
    def words(self, plane: int, offset: int, count: int) -> Sequence[Value]:
        """`count` u32 of four activations' planes each, from value `offset` on."""

    @abstractmethod
    def scale(self, offset: int) -> Value:
        """The scale of the block that holds value `offset`."""

    @abstractmethod
    def negative_sum(self, offset: int) -> Value:
        """-(scale * sum) of the block that holds value `offset`."""

    def dot(self, words: Sequence[Value] | int, signed: bool, offset: int, count: int) -> list[Value]:
        """s32: the exact sum of codes times activations' integers. With three planes two sums, because one would take 36 bits:
        that of the upper two planes, which counts 256-fold, and that of the third. None can overflow: two planes come to
        32 * 255 * 32639 at most."""
        sums = [self._dot_plane(words, signed, plane, offset, count) for plane in range(self.count)]
        return sums if len(sums) == 1 else [self.k.mad(sums[0], 256, sums[1]), *sums[2:]]

    def number(self, sums: Sequence[Value]) -> Value:
        """f32: what `dot` gave, rounded once; with three planes twice, first the upper two's sum where it has over 24 bits.
        The third's is under 2^20, so it is exact."""
        upper, *third = (self.k.f32(sum) for sum in sums)
        return self.k.fma(upper, 256.0, third[0]) if third else upper

    def _dot_plane(self, words: Sequence[Value] | int, signed: bool, plane: int, offset: int, count: int) -> Value:
        k = self.k
        total: Value | None = None
        for i, x in enumerate(self.words(plane, offset, count)):
            w = words if isinstance(words, int) else words[i]
            start = total if total is not None else k.s32(0)
            total = k.dp4a(w, x, start, a_type="s32" if signed else "u32", b_type="s32")
        assert total is not None
        return total

    def add(self, runs: Sequence[Run], total: Value) -> Value:
        """total plus the products of a fragment, run after run: fma(scale * x's scale, sum of integers), then the minimum."""
        k = self.k
        for run in runs:
            count = len(run.words)
            sums = self.dot(run.words, run.signed, run.offset, count)
            total = k.fma(run.scale * self.scale(run.offset), self.number(sums), total)
            if run.minimum is not None:
                total = k.fma(run.minimum, self._run_sum(run.offset, count), total)
        return total

    def _run_sum(self, offset: int, count: int) -> Value:
        """-(scale * sum) of a run's activations: the block's, or that of the part of it that the run has."""
        if 4 * count == BLOCK:
            return self.negative_sum(offset)
        return -(self.scale(offset) * self.number(self.dot(ONES, False, offset, count)))


class LoadedPlanes(LanePlanes):
    """Planes that are loaded once for all runs and rows of weights that meet them."""

    def __init__(self, k: KernelBuilder, count: int) -> None:
        super().__init__(k, count)
        self._words: dict[tuple[int, int], Value] = {}
        self._scales_of: dict[int, Value] = {}
        self._sums_of: dict[int, Value] = {}

    @abstractmethod
    def load_words(self, plane: int, offset: int, count: int) -> Sequence[Value]:
        """Load 1, 2 or 4 words."""

    @abstractmethod
    def load_block(self, block: int) -> tuple[Value, Value | None]:
        """Load the scale and the negative sum (if the format needs it) of this block, counted from that of the first value."""

    def words(self, plane: int, offset: int, count: int) -> Sequence[Value]:
        """See LaneDigits."""
        at = range(offset, offset + 4 * count, 4)
        piece = 4 if count % 4 == 0 else 2 if count % 2 == 0 else 1
        for start in at[::piece]:
            if (plane, start) not in self._words:
                for i, word in enumerate(self.load_words(plane, start, piece)):
                    self._words[plane, start + 4 * i] = word
        return [self._words[plane, one] for one in at]

    def scale(self, offset: int) -> Value:
        """See LaneDigits."""
        self._need(offset // BLOCK)
        return self._scales_of[offset // BLOCK]

    def negative_sum(self, offset: int) -> Value:
        """See LaneDigits."""
        self._need(offset // BLOCK)
        return self._sums_of[offset // BLOCK]

    def _need(self, block: int) -> None:
        if block not in self._scales_of:
            self._scales_of[block], total = self.load_block(block)
            if total is not None:
                self._sums_of[block] = total


@dataclass(frozen=True)
class GlobalPlaneArrays:
    """Int8 planes of activations where the quantising kernel left them."""

    digits: Sequence[GlobalArray]
    """One array a plane, from the lane's first value of the first step on."""
    scales: GlobalArray
    sums: GlobalArray


class GlobalPlanes(LoadedPlanes):
    """Read straight from global memory."""

    def __init__(self, k: KernelBuilder, source: GlobalPlaneArrays, sums: bool) -> None:
        super().__init__(k, len(source.digits))
        self._source = source
        self._with_sums = sums

    def load_words(self, plane: int, offset: int, count: int) -> Sequence[Value]:
        """See LoadedDigits."""
        element = self._source.digits[plane][offset]
        if count == 1:
            return [self.k.load(element, U32)]
        return self.k.load_vector(element, count, U32)

    def load_block(self, block: int) -> tuple[Value, Value | None]:
        """See LoadedDigits."""
        scale = self.k.load(self._source.scales[block])
        if not self._with_sums:
            return scale, None
        return scale, -(scale * self.k.f32(self.k.load(self._source.sums[block])))
