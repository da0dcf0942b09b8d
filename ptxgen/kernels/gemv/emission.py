"""The text of the blocks of a GEMV on int8 planes: activations are staged, and rows multiplied chunk by chunk, or in turns.
What becomes of the sums is the store's business (epilogue.py, grouped_rows.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.chunks import Chunk, ChunkLoop, Warp, loops
from ptxgen.kernels.gemv.epilogue import Store
from ptxgen.kernels.gemv.row_groups import Turns
from ptxgen.kernels.gemv.shared_planes import Layout, chunks, rows_at_once
from ptxgen.kernels.gemv.suited import loads_rows_first
from ptxgen.kernels.gemv.weight_pipeline import WeightRing


def emit(k: KernelBuilder, blocks: Blocks, store: Store, *, holds_next: bool) -> None:
    """Write all that these blocks do. holds_next: see HwDp4aGemv."""
    if blocks.in_turns:
        _emit_turns(k, blocks, store, holds_next=holds_next)
        return
    together = rows_at_once(blocks.format, blocks.k, blocks.tokens, blocks.digits)
    turns = [range(row, min(row + together, blocks.tokens)) for row in range(0, blocks.tokens, together)]
    parts = chunks(blocks.format, blocks.k, together, blocks.digits)
    if loops(blocks, parts):
        _emit_looped(k, blocks, store, turns, parts[0][1])
    else:
        _emit_written_out(k, blocks, store, turns, parts)


def _emit_written_out(k: KernelBuilder, blocks: Blocks, store: Store, turns: list[range], parts: list[tuple[int, int]]) -> None:
    step_values = blocks.fragments.values
    layout = Layout(blocks.format, min(blocks.k, parts[0][1] * step_values), len(turns[0]), blocks.digits)
    warp = Warp(blocks, k, layout)
    early: Sequence[Sequence[Value | None]] = []
    for first, steps in parts:
        chunk = Chunk(warp, first, steps)
        with k.loads_in_order() if loads_rows_first(blocks) else nullcontext():
            chunk.load_ahead()
        for rows in turns:
            fresh = not first and rows is turns[0]
            if not fresh:
                k.barrier()  # the lanes may still be reading what was staged last
            elif blocks.pdl:
                k.griddepcontrol(action="wait")
            warp.shared.fill(rows, first * step_values, min(blocks.k - first * step_values, steps * step_values))
            if fresh and blocks.pdl:
                k.griddepcontrol(action="launch_dependents")
            if fresh:
                early = store.early(warp)
            chunk.add(rows)
    store.sums(warp, early)


def _emit_looped(k: KernelBuilder, blocks: Blocks, store: Store, turns: list[range], most_steps: int) -> None:
    loop = ChunkLoop(blocks, k, turns, most_steps)
    if blocks.pdl:
        k.griddepcontrol(action="wait")
    early = store.early(loop.warp)
    for first in loop.chunks():
        for rows in turns:
            loop.fill(rows, first)
            if blocks.pdl and rows is turns[0]:
                k.griddepcontrol(action="launch_dependents")
            loop.add(rows, first)
    store.sums(loop.warp, early)


def _emit_turns(k: KernelBuilder, blocks: Blocks, store: Store, *, holds_next: bool) -> None:
    warp = Warp(blocks, k, Layout(blocks.format, blocks.k, 1, blocks.digits))
    turns = WeightRing(warp, blocks.ring_start) if blocks.ring else Turns(warp)
    if blocks.pdl:
        k.griddepcontrol(action="wait")
    elif blocks.ring:
        k.wait_for_launch_before()
    warp.shared.fill(range(1), 0, blocks.k, turns.fill_late if isinstance(turns, WeightRing) else None)
    if blocks.pdl:
        k.griddepcontrol(action="launch_dependents")
    early: list[Sequence[Value | None]] = []
    sums = turns.sums(lambda: early.extend(store.early(warp)))
    if holds_next:
        k.let_next_launch_start()
    store.own_sums(warp, sums, early)
