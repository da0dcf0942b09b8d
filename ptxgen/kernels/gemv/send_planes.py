"""The epilogue that sends int8 planes to other ranks: the ranks share a matrix by its rows, and the planes that a rank makes go
to the others at once, whose next products wait for them (PlaneSource.row_parts). So no launch gathers or sends them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.value import Value
from ptxgen.kernels.collective.all_gather import MOST_RANKS
from ptxgen.kernels.collective.plane_message import (
    PlaneMessage,
    message_arguments,
    message_bounds,
    message_inputs,
    message_reference,
    word_of_lanes,
)
from ptxgen.kernels.collective.plane_words import PlaneWords
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.epilogue import Arrays
from ptxgen.kernels.gemv.planes import PREFIX, GroupLane, Planes
from ptxgen.kernels.gemv.received_planes import in_parts
from ptxgen.kernels.gemv.source import PlaneSource
from ptxgen.kernels.quantize.int8_planes import BLOCK, ActivationPlanes
from ptxgen.kernels.quantize.quantize import LANE_VALUES, block_integers, planes_of
from ptxgen.kernels.shape import require_of
from ptxgen.types import U32, U64


@dataclass(frozen=True)
class SendPlanes(Planes):
    """As Planes on each of several ranks, of which each has rows of its own, and the planes of y go to the other ranks: the
    kernel that keeps its planes and send_digits, bit for bit and in one launch.

    y_digits: s8[1, out_digits, ranks * n], y_scales: f32[1, ranks * n / 32], y_sums: s32[1, ranks * n / 32]: of the whole row,
    of which the places of this rank's part are written. y_numbers, y_inbox, y_inboxes and rank: see
    collective/plane_message.py; a kernel with `row_parts` takes the first number, and the inbox. A launch on each rank is one
    message (LaunchConfig.ranks); between two there must be another gather: send_digits says why."""

    suffix: ClassVar[str] = "_sent"
    summary: ClassVar[str] = "and its int8 planes, which go to other ranks, too"
    ranks: int

    def check(self, blocks: Blocks) -> None:
        super().check(blocks)
        parts = blocks.source.row_parts
        require_of(blocks.name, self, "ranks", low=2, high=MOST_RANKS)
        if parts > 1:
            require_of(blocks.name, self, "ranks", low=parts, high=parts)

    def words(self, blocks: Blocks) -> PlaneWords:
        """What a rank sends."""
        return PlaneWords(blocks.n, self.out_digits, normed=False)

    @property
    def kept(self) -> Planes:
        """The epilogue that keeps its planes."""
        return Planes(self.out_digits)

    def of_all_ranks(self, blocks: Blocks, arguments: Signature) -> Signature:
        """All arguments of a kernel, of which those that keep their planes are given."""
        whole: Signature = {}
        for name in _names():
            array = arguments[name]
            assert isinstance(array, Array)
            whole[name] = replace(array, shape=(*array.shape[:-1], self.ranks * array.shape[-1]), partial=True)
        return arguments | whole | message_arguments(self.words(blocks), self.ranks, blocks.count)

    # Emission

    def begin(self, k: KernelBuilder, blocks: Blocks) -> PlaneMessage:
        return PlaneMessage(k, self.ranks)

    def write(
        self,
        k: KernelBuilder,
        blocks: Blocks,
        group: GroupLane,
        y: Value,
        loaded: Value | None,
        live: Value,
        message: PlaneMessage | None,
    ) -> None:
        assert message is not None
        words = self.words(blocks)
        integers, scale, total = block_integers(k, self.out_digits, [y])
        of_lanes = [word_of_lanes(k, plane) for (plane,) in planes_of(integers, self.out_digits)]
        with k.when(live & ((k.lane & (LANE_VALUES - 1)) == 0)):
            for plane, word in enumerate(of_lanes):
                whole = k.arg.y_digits[0, plane, k.arg.rank * blocks.n + group.row]
                k.store(replace(whole, dtype=U32), word)
                message.send(group.row // LANE_VALUES + words.start("digits", plane), word)
        with k.when(live & (k.lane == 0)):
            for name, value in (("scales", scale), ("sums", total)):
                k.store(getattr(k.arg, PREFIX + name)[0, k.arg.rank * words.blocks + group.number], value)
                message.send(group.number + words.start(name), k.bits(value, U32))

    # Reference, of all ranks at once. alone: the kernel that keeps its planes

    def reference_of_ranks(self, alone: KernelType, blocks: Blocks, arguments: Mapping[str, Any]) -> Arrays:
        """See KernelType.reference."""
        found = self._of_each(alone, arguments, "reference")
        whole = {name: arguments[name].astype(np.float64) for name in _names()}
        made = [_made(one) for one in found]
        return {**_together(found, whole), **message_reference(arguments, self.words(blocks), made)}

    def tolerance_of_ranks(self, alone: KernelType, blocks: Blocks, arguments: Mapping[str, Any]) -> Arrays:
        """Of a rank that of `alone`; words are those of any planes that near."""
        found, bounds = (self._of_each(alone, arguments, what) for what in ("reference", "tolerance"))
        made, off = ([_made(one) for one in of] for of in (found, bounds))
        zeros = {name: np.zeros(arguments[name].shape) for name in _names()}
        return {**_together(bounds, zeros), **message_bounds(arguments, self.words(blocks), made, off)}

    def _of_each(self, alone: KernelType, arguments: Mapping[str, Any], what: str) -> list[Mapping[str, NDArray[Any]]]:
        """What this method of `alone` gives for each rank."""
        own = [name for name in alone.signature() if name not in _names()]
        return [getattr(alone, what)(**{name: arguments[name][rank] for name in own}) for rank in range(self.ranks)]

    def inputs_of_ranks(
        self, whole: KernelType, source: PlaneSource, blocks: Blocks, signature: Signature, rng: np.random.Generator
    ) -> dict[str, Any]:
        """See KernelType.inputs. whole: `alone` for a row that does not come in parts; source: of the kernel itself."""
        of_each = []
        for rank in range(self.ranks):
            given = whole.inputs(rng)
            if source.row_parts > 1:
                given = in_parts(rng, given, source.part_words, source.row_parts, rank)
            of_each.append(given)
        stacked = {name: np.stack([one[name] for one in of_each]) for name in of_each[0]}
        for name in _names():
            array = signature[name]
            assert isinstance(array, Array)
            stacked[name] = np.zeros((self.ranks, *array.shape), stacked[name].dtype)
        return {**stacked, **message_inputs(rng, self.words(blocks), self.ranks, blocks.count)}

    def work(self, blocks: Blocks) -> Work:
        """Each word goes to each other rank, too."""
        kept = super().work(blocks)
        return Work(kept.flops, kept.bytes + U64.bytes * self.words(blocks).count * (self.ranks - 1))

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Of gate and up."""
        three = {"digits": 3, "out_digits": 3}
        k = max(fixed["format"].block, 3 * BLOCK)
        yield {"k": k, "n": 32, "num_warps": 2, "rows_per_warp": 4, "ranks": 2, **three}  # two blocks a group
        if fixed["format"].name == "Q4_K":
            parts = {"stages": 3, "normed": True, "row_parts": 2, "ranks": 2}
            yield {"k": 4096, "n": 64, "num_warps": 8, "row_groups": 4, **parts, **three}
            yield {"k": 2048, "n": 96, "num_warps": 8, "row_groups": 8, "digits": 2, "out_digits": 2, "ranks": 4}


def _together(of_each: list[Mapping[str, NDArray[Any]]], whole: Arrays) -> Arrays:
    """Of all ranks: each one's part of the planes in its place of `whole`."""
    for name, array in whole.items():
        for rank, one in enumerate(of_each):
            size = one[name].shape[-1]
            array[rank][..., rank * size : (rank + 1) * size] = one[name]
    others = [name for name in of_each[0] if name not in whole]
    return {**whole, **{name: np.stack([one[name] for one in of_each]) for name in others}}


def _names() -> tuple[str, ...]:
    return tuple(PREFIX + name for name in ActivationPlanes._fields)


def _made(found: Mapping[str, NDArray[Any]]) -> Arrays:
    return {name: found[PREFIX + name] for name in ActivationPlanes._fields}
