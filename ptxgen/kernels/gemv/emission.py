"""The text of the blocks of a GEMV on int8 planes: activations are staged, and rows multiplied chunk by chunk, or in row
groups. What becomes of the sums is the store's business (epilogue.py, grouped_rows.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.chunks import Chunk, ChunkLoop, Warp, loops
from ptxgen.kernels.gemv.epilogue import Store
from ptxgen.kernels.gemv.row_groups import RowGroups
from ptxgen.kernels.gemv.shared_planes import Layout, chunks, rows_at_once
from ptxgen.kernels.gemv.suited import loads_rows_first
from ptxgen.kernels.gemv.weight_pipeline import WeightPipeline


def emit(k: KernelBuilder, blocks: Blocks, store: Store, *, holds_next: bool) -> None:
    """Write all that these blocks do. holds_next: see HwDp4aGemv."""
    if blocks.in_row_groups:
        _emit_row_groups(k, blocks, store, holds_next=holds_next)
        return
    together = rows_at_once(blocks.format, blocks.k, blocks.tokens, blocks.digits)
    tokens_at_once = [range(row, min(row + together, blocks.tokens)) for row in range(0, blocks.tokens, together)]
    parts = chunks(blocks.format, blocks.k, together, blocks.digits)
    if loops(blocks, parts):
        _emit_looped(k, blocks, store, tokens_at_once, parts[0][1])
    else:
        _emit_written_out(k, blocks, store, tokens_at_once, parts)


def _emit_written_out(
    k: KernelBuilder, blocks: Blocks, store: Store, tokens_at_once: list[range], parts: list[tuple[int, int]]
) -> None:
    step_values = blocks.fragments.values
    layout = Layout(blocks.format, min(blocks.k, parts[0][1] * step_values), len(tokens_at_once[0]), blocks.digits)
    warp = Warp(blocks, k, layout)
    early: Sequence[Sequence[Value | None]] = []
    for first, steps in parts:
        chunk = Chunk(warp, first, steps)
        with k.loads_in_order() if loads_rows_first(blocks) else nullcontext():
            chunk.load_ahead()
        for rows in tokens_at_once:
            fresh = not first and rows is tokens_at_once[0]
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


def _emit_looped(k: KernelBuilder, blocks: Blocks, store: Store, tokens_at_once: list[range], most_steps: int) -> None:
    loop = ChunkLoop(blocks, k, tokens_at_once, most_steps)
    if blocks.pdl:
        k.griddepcontrol(action="wait")
    early = store.early(loop.warp)
    for first in loop.chunks():
        for rows in tokens_at_once:
            loop.fill(rows, first)
            if blocks.pdl and rows is tokens_at_once[0]:
                k.griddepcontrol(action="launch_dependents")
            loop.add(rows, first)
    store.sums(loop.warp, early)


def _emit_row_groups(k: KernelBuilder, blocks: Blocks, store: Store, *, holds_next: bool) -> None:
    warp = Warp(blocks, k, Layout(blocks.format, blocks.k, 1, blocks.digits))
    groups = WeightPipeline(warp, blocks.pipeline_start) if blocks.stages else RowGroups(warp)
    if blocks.pdl:
        k.griddepcontrol(action="wait")
    elif blocks.stages:
        k.wait_for_launch_before()
    warp.shared.fill(range(1), 0, blocks.k, groups.fill_late if isinstance(groups, WeightPipeline) else None)
    if blocks.pdl:
        k.griddepcontrol(action="launch_dependents")
    early: list[Sequence[Value | None]] = []
    sums = groups.sums(lambda: early.extend(store.early(warp)))
    if holds_next:
        k.let_next_launch_start()
    store.own_sums(warp, sums, early)
