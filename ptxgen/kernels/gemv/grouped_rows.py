"""How the results of a block of threads meet where an epilogue needs groups of 32: those of a block in shared memory; and in
global memory where several blocks have rows of a group, of which the last one to come finds what the others left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.kernels.collective.plane_message import PlaneMessage
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.chunks import Warp
from ptxgen.kernels.gemv.epilogue import Chain
from ptxgen.kernels.gemv.planes import GroupLane, Planes, groups_of_block
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.target import FULL_WARP, WARP_SIZE
from ptxgen.types import F32, U32


class GroupedRows:
    """A Store (epilogue.py) for a chain whose last epilogue makes int8 planes of what the others give. For one kernel."""

    def __init__(self, k: KernelBuilder, blocks: Blocks, chain: Chain, planes: Planes) -> None:
        self.k, self.blocks, self.chain, self.planes = k, blocks, chain, planes
        self._shares_groups = bool(planes.scratch(blocks))
        self._groups = groups_of_block(blocks)
        self._message: PlaneMessage | None = None

    def early(self, warp: Warp) -> list[list[Value | None]]:
        """See Store: what the chain needs, and what the planes do."""
        self._message = self.planes.begin(self.k, self.blocks)
        place = self._group_lane()
        of_chain = [self._loaded(place.mine, one.needs(self.k, place.row)) for one in self.chain]
        return [of_chain, [self._loaded(place.live, self.planes.needs(self.k, place.row))]]

    def sums(self, warp: Warp, early: Sequence[Sequence[Value | None]]) -> None:
        """See Store."""
        rows = [warp.sum(total) for (total,) in warp.totals]
        count = len(self.blocks.weights)
        sums = []
        for number in range(count):
            mine, *others = rows[number::count]
            for place, other in enumerate(others, 1):
                mine = self.k.select(warp.lane.place == place, other, mine)
            sums.append(mine)
        self.own_sums(warp, sums, early)

    def own_sums(self, warp: Warp, sums: Sequence[Value], early: Sequence[Sequence[Value | None]]) -> None:
        """See Store. The sums meet in shared memory, where a warp for each group of the block has a lane a row."""
        self._meet(warp, sums, early)
        if self._message is not None:
            self._message.end()

    def _meet(self, warp: Warp, sums: Sequence[Value], early: Sequence[Sequence[Value | None]]) -> None:
        k, blocks = self.k, self.blocks
        of_chain, (for_planes,) = early
        shared = [k.shared(F32, blocks.block_rows) for _ in sums]
        row, has = warp.first_row + warp.own, warp.own < blocks.warp_results
        if not blocks.whole:
            has = has & (row >= warp.first_new) & (row < blocks.n)
        with k.when(has) if blocks.warp_results < WARP_SIZE or not blocks.whole else nullcontext():
            for view, own in zip(shared, sums, strict=True):
                k.store(view[row - k.ctaid.x * blocks.block_rows], own)
        k.barrier()
        with k.when(k.warp < self._groups) if self._groups < blocks.num_warps else nullcontext():
            group = self._group_lane()
            place = group.row - k.ctaid.x * blocks.block_rows
            if self._shares_groups or not blocks.whole:  # a row of the group may be another block's, or of no group
                place = k.select(group.mine, place, k.u32(0))
            values = [k.load(view[place]) for view in shared]
            for epilogue, loaded in zip(self.chain, of_chain, strict=True):
                values = [epilogue.result(k, values, loaded)]
            (y,) = values
            with k.when(group.mine):
                k.store(k.arg.y[group.row], y)
            if not self._shares_groups:
                self.planes.write(k, blocks, group, y, for_planes, group.live, self._message)
                return
            with k.when(group.live):
                all_rows = k.variable(y, F32)
                complete = self._last_of_group(group, all_rows)
                with k.when(complete):
                    self.planes.write(k, blocks, group, all_rows, for_planes, complete, self._message)

    def _last_of_group(self, group: GroupLane, y: Value) -> Value:
        """Whether all rows of the warp's group are there; then `y` becomes that of each lane's."""
        k, rows = self.k, self.blocks.block_rows
        first = group.number * BLOCK
        others = (first + (BLOCK - 1)) // rows - first // rows
        k.bar_warp_sync(FULL_WARP)  # what the lanes wrote comes before the count, which publishes it
        count = k.variable(0, U32)
        with k.when((k.lane == 0) & (others > 0)):
            counter = k.arg.counters[group.number].address
            given = k.atom(counter, others, order="acq_rel", scope="gpu", space="global", op="inc", type="u32")
            k.assign(count, given)  # inc goes from `others` to 0
        count = k.shuffle(count, 0)
        k.bar_warp_sync(FULL_WARP)
        complete: Value = count == others
        with k.when(complete & ~group.mine):
            k.assign(y, k.load(k.arg.y[group.row]))
        return complete

    def _group_lane(self) -> GroupLane:
        """The place of a lane in the group that its warp finishes."""
        k, blocks = self.k, self.blocks
        first = k.ctaid.x * blocks.block_rows
        if not self._shares_groups:
            row = first + k.tid.x
            there = k.tid.x < blocks.block_rows
            there = there if blocks.whole else there & (row < blocks.n)
            return GroupLane(row // BLOCK, row, there, there)
        number = first // BLOCK + k.warp
        row = number * BLOCK + k.lane
        end = first + blocks.block_rows
        if not blocks.whole:
            end = k.min(end, blocks.n)
        return GroupLane(number, row, (row >= first) & (row < end), number * BLOCK < end)

    def _loaded(self, live: Value, element: Element | None) -> Value | None:
        """The element where `live` holds."""
        if element is None:
            return None
        loaded = self.k.variable(0.0, F32)
        with self.k.when(live):
            self.k.assign(loaded, self.k.load(element))
        return loaded
