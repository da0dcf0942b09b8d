"""The int8 planes of activations that all warps of a block multiply by, in shared memory: as another kernel left them, or made
by the block itself of f32 values that others wrote. Every block makes all of them, so that nobody waits for another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.kernels.gemv.fragments import FragmentLane
from ptxgen.kernels.gemv.shared_planes import PADDED, PIECE, Layout, SharedLanePlanes, padding, planes_before
from ptxgen.kernels.norm.squares import inverse_root, row_squares
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.quantize.quantize import LANE_VALUES, block_integers, packed, planes_of
from ptxgen.types import F32, U32

AT_ONCE = 2
"""Values of a block's threads, four of each, that are loaded ahead of those that are quantised."""

Loaded = Sequence[tuple[Value, ...]]
"""What a lane loaded: LANE_VALUES of each of some arrays."""


def layout_for(formats: Sequence[Format], k: int, digits: int) -> Layout:
    """The layout that all of these formats can be multiplied from: that of one with minima, if there is one."""
    return Layout(next((one for one in formats if one.has_minimum), formats[0]), k, 1, digits)


@dataclass(frozen=True)
class StagedActivations:
    """`layout.values` activations of one row from the address `start` of shared memory on."""

    k: KernelBuilder
    layout: Layout
    start: Value

    @property
    def _scales(self) -> Value:
        return self.start + self.layout.digits * self.layout.plane_bytes

    def copy(self, digits: GlobalArray, scales: GlobalArray, sums: GlobalArray) -> None:
        """Stage what a quantising kernel left: s8[1, digits, k], f32[1, k / 32], s32[1, k / 32]."""
        k, layout = self.k, self.layout
        for plane in range(layout.digits):
            source = digits.at(0, plane, 0)
            for piece in k.strided(k.tid.x, layout.values // PIECE, step=k.threads):
                words = k.load_vector(source.at(piece * PIECE)[0], 4, U32)
                k.store(self._planes(piece * PIECE, plane), words)
        for block in k.strided(k.tid.x, layout.values // BLOCK, step=k.threads):
            self._store_scale(block, k.load(scales[0, block]), k.load(sums[0, block]))

    def normalise(self, hidden: int, x: GlobalArray, gamma: GlobalArray) -> None:
        """Stage the planes of the RMSNorm of x, f32[hidden], with the bits of rmsnorm_digits."""
        k = self.k
        scale = inverse_root(k, row_squares(k, x, hidden), hidden, k.arg.eps)
        self._quantise_all(
            lambda first: [k.load_vector(array[first], LANE_VALUES) for array in (x, gamma)],
            lambda read: [value * weight for value, weight in zip(*read, strict=True)],
            scale,
        )

    def quantise(self, values: GlobalArray) -> None:
        """Stage the planes of these f32[k]."""
        self._quantise_all(lambda first: [self.k.load_vector(values[first], LANE_VALUES)], lambda read: list(read[0]))

    def reader(self, lane: FragmentLane) -> Callable[[Index], SharedLanePlanes]:
        """What gives the activations that the lane's fragment meets in a step of a row."""
        first, layout = lane.first_value, self.layout
        digits, scales = self.start + planes_before(layout, first), self._scales + first // BLOCK * layout.scale_bytes
        return lambda step: SharedLanePlanes(self.k, layout, lane.fragments, digits, scales, 0, step)

    def _quantise_all(
        self, load: Callable[[Value], Loaded], values: Callable[[Loaded], list[Value]], factor: Value | None = None
    ) -> None:
        """Stage the planes of what `values` makes of what `load` loads of the activations from one on; they stand for `factor`
        times that. Loads are AT_ONCE chunks of the block ahead of their use, in a loop: written out it would be longer than all
        products."""
        k, threads, count = self.k, self.k.threads * LANE_VALUES, self.layout.values
        ahead = min(AT_ONCE, -(-count // threads))

        def place(first: Value) -> Value:
            """Lanes past the end do the last lane's work again, because shuffles need them all."""
            inside: Value = k.min(first, count - LANE_VALUES)
            return inside

        own = k.tid.x * LANE_VALUES
        held = [
            [tuple(k.variable(value, F32) for value in vector) for vector in load(place(own + i * threads))]
            for i in range(ahead)
        ]
        for start in k.strided(0, count, step=ahead * threads):
            first = own + start
            for i in range(ahead):
                mine = first + i * threads if i else first
                coming = load(place(mine + ahead * threads))
                self._quantise(place(mine), values(held[i]), mine < count, factor)
                for old, new in zip(held[i], coming, strict=True):
                    for variable, value in zip(old, new, strict=True):
                        k.assign(variable, value)

    def _quantise(self, first: Value, xs: Sequence[Value], inside: Value, factor: Value | None) -> None:
        k = self.k
        integers, scale, total = block_integers(k, self.layout.digits, xs)
        if factor is not None:
            scale = scale * factor
        with k.when(inside):
            for plane, parts in enumerate(planes_of(integers, self.layout.digits)):
                k.store(self._planes(first, plane), packed(k, parts))
            with k.when((k.lane & (BLOCK // LANE_VALUES - 1)) == 0):
                self._store_scale(first // BLOCK, scale, total)

    def _store_scale(self, block: Value, scale: Value, total: Value) -> None:
        k, size = self.k, self.layout.scale_bytes
        at = Element("shared", (self._scales + block * size).register, 0, F32)
        k.store(at, (scale, -(scale * k.f32(total))) if self.layout.format.has_minimum else scale)

    def _planes(self, first: Value, plane: int) -> Element:
        pad = padding(self.layout.format)
        place = self.k.mad(first // PADDED, pad, self.start + first) if pad else self.start + first
        return Element("shared", place.register, plane * self.layout.plane_bytes, U32)
