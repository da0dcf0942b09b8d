"""What a warp does with its groups of rows: the products with the activations of the stage, as hw_dp4a adds them up, and where
they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.chunks import Raw
from ptxgen.kernels.gemv.fragments import FragmentLane
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.persistent.part_table import NEVER, Field, StreamPart
from ptxgen.kernels.persistent.segments import PIECE
from ptxgen.kernels.persistent.staged_activations import StagedActivations
from ptxgen.kernels.persistent.stages import Goal, Stage
from ptxgen.kernels.persistent.weight_stream import WeightStream
from ptxgen.target import MAX_REGISTERS

MOST_LOADED: Final = MAX_REGISTERS * 3 // 8
"""Registers that hold weights of a step as they were loaded. Where the rows of a warp would take more (Q6_K), as many rows as
take no more are added before the next are loaded."""


class Products:
    """Of parts that are like this one."""

    def __init__(
        self, k: KernelBuilder, stage: Stage, part: StreamPart, activations: StagedActivations, stream: WeightStream
    ) -> None:
        self.k, self.stage, self.part, self.stream, self.table = k, stage, part, stream, stream.table
        self.segments = part.segments
        self.lane: FragmentLane = part.segments.fragments.lane(k)
        self.read = activations.reader(self.lane)

    def add(self, entry: Value) -> None:
        """Write the loop over the warp's groups of the part of this entry of the table."""
        k, height, start, table = self.k, self.part.part.height, self.part.part.first, self.table
        groups, last = table.word(entry, Field.GROUPS), table.word(entry, Field.ROWS) - 1
        result = replace(k.arg.x, base=table.argument(entry, [one.result for one in table.parts]), shape=(NEVER,))
        for group in k.strided(table.first_group(entry), groups, step=table.warps):
            first = group * height
            rows = [k.min(first + i, last) if i else first for i in range(height)]
            before = [k.load(result[row + start if start else row]) for row in rows] if self.stage.goal is Goal.STREAM else []
            totals = [k.f32(0.0) for _ in range(self.part.rows)]
            self._add_segments(totals, rows * len(self.part.weights))
            sums = [k.warp_sum(total) for total in totals]
            with k.when(k.lane == 0):
                for i, value in enumerate(self._results(sums, before)):
                    with k.when(first + i <= last):
                        k.store(result[rows[i] + start if start else rows[i]], value)

    def _results(self, sums: Sequence[Value], before: Sequence[Value]) -> list[Value]:
        match self.stage.goal:
            case Goal.STREAM:
                return [held + total for held, total in zip(before, sums, strict=True)]
            case Goal.GATED:
                half = len(sums) // 2
                return [mathlib.silu(self.k, gate) * up for gate, up in zip(sums[:half], sums[half:], strict=True)]
            case Goal.OWN:
                return list(sums)

    def _add_segments(self, totals: Sequence[Value], rows: Sequence[Value]) -> None:
        """Add the products of all segments of each row."""
        k, segments = self.k, self.segments
        if segments.count == 1:
            self._add(totals, rows, 0, segments.last_steps)
            return
        for segment in k.strided(0, segments.count):
            steps: Index = segments.steps
            if segments.last_steps != steps:
                steps = k.select(segment == segments.count - 1, k.u32(segments.last_steps), steps)
            self._add(totals, rows, segment, steps)

    def _add(self, totals: Sequence[Value], rows: Sequence[Value], segment: Index, steps: Index) -> None:
        """Add the products of this segment of each row, which has so many steps."""
        k = self.k
        places = self.stream.take(len(rows))
        starts = [self._start(place, row, segment) for place, row in zip(places, rows, strict=True)]
        if isinstance(steps, int) and steps == 1:
            self._add_step(totals, starts, segment, 0, lambda: self.stream.refill(len(rows)))
            return

        def refill_at_last() -> None:
            with k.when(step == steps - 1):
                self.stream.refill(len(rows))

        for step in k.strided(0, steps):
            self._add_step(totals, starts, segment, step, refill_at_last)

    def _start(self, place: SharedPart, row: Value, segment: Index) -> SharedPart:
        """Where a row's segment starts in its stage: as far behind a multiple of 16 bytes as in its matrix."""
        if self.stream.aligned:
            return place
        one, k = self.segments, self.k
        before = self.part.part.first * one.row_bytes % PIECE
        behind = k.mad(row, one.row_bytes, k.u32(segment * one.bytes)) + before
        return place.at(behind & (PIECE - 1))

    def _add_step(
        self, totals: Sequence[Value], starts: Sequence[SharedPart], segment: Index, step: Index, loaded: Callable[[], None]
    ) -> None:
        """Add the products of a step of the segments that start there; `loaded` is called when nobody reads them any more."""
        k, lane, fragments = self.k, self.lane, self.segments.fragments
        number = segment * self.segments.steps + step
        block: Index = lane.block
        inside: Value | None = None
        if fragments.rest:  # lanes without a block in the row's last step take the last one, for nothing
            left = k.u32(self.segments.k // fragments.format.block) - number * fragments.blocks
            block, inside = k.min(lane.block, left - 1), k.u32(lane.block) < left
        places = [lane.of_block(advance(start, step, fragments.bytes), block) for start in starts]
        first = lane.load(k, places[0])
        at_once = max(1, MOST_LOADED // len(first))
        for begin in range(0, len(places), at_once):
            of_rows = totals[begin : begin + at_once]
            raw = [first if place is places[0] else lane.load(k, place) for place in places[begin : begin + at_once]]
            if begin + at_once >= len(places):
                loaded()
            with nullcontext() if inside is None else k.when(inside):
                self._add_rows(raw, of_rows, number)

    def _add_rows(self, raw: Raw, totals: Sequence[Value], number: Index) -> None:
        """Add what was loaded of a step of some rows, the step of this number, to their sums."""
        runs = [self.lane.unpack(self.k, one) for one in raw]
        activations = self.read(number)
        # Three planes of a whole fragment's activations would fill the registers, as in chunks.py.
        count = len(runs[0])
        share = count if self.stage.digits < 3 else 1
        for start in range(0, count, share):
            for row, total in zip(runs, totals, strict=True):
                self.k.assign(total, activations.add(row[start : start + share], total))
