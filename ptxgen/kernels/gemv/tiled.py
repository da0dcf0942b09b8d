"""The tiled GEMV: the warps of a block stage x in shared memory once, all together, and then each adds up its row. For a k
whose activations do not fit there is chunked_tiled.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedPart, SharedView
from ptxgen.errors import ArgumentError
from ptxgen.formats import COMMON
from ptxgen.kernels.gemv.dot import Dot
from ptxgen.kernels.gemv.gemv_type import model_cases
from ptxgen.kernels.gemv.iteration import IterationSpace, advance
from ptxgen.kernels.gemv.warp_row import ROWS, WarpRowGemv
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import MAX_STATIC_SHARED
from ptxgen.types import F32

PIECE = 4
"""Activations that a thread moves at a time, with one 16-byte load."""

LOADS_AHEAD = 4
"""Pieces that a thread loads before it stores the first."""

LARGEST = MAX_STATIC_SHARED // F32.bytes


@register(format=COMMON.values())
@dataclass(frozen=True)
class TiledGemv(WarpRowGemv):
    """y = W x, tiled: x staged once in shared memory, one warp an output, outputs_per_block outputs a block.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k], of which 48 KB fit: k is 12288 or less, and
    a multiple of 4."""

    outputs_per_block: int = field(default=ROWS, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "k", multiple=max(PIECE, self.format.block))
        require(self, "outputs_per_block", high=32)
        if self.k > LARGEST:
            raise ArgumentError(
                f"{self.name}: k must be {LARGEST} or less, so that x fits {MAX_STATIC_SHARED} bytes of shared memory, "
                f"got {self.k}; chunked_{self.name} takes any"
            )

    name_pattern = "tiled_{format}_gemv"

    @property
    def block_rows(self) -> int:
        return self.outputs_per_block

    @property
    def dot(self) -> Dot:
        return Dot(IterationSpace(self.format, self.k))

    def activations(self, k: KernelBuilder) -> SharedPart:
        staged = k.shared(F32, self.k)
        stage(k, k.arg.x, staged, self.k)
        k.barrier()
        return staged.start()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[TiledGemv]:
        shapes = (4096, 11), (256, 1, 1), (1536, 13, 7), (12288, 3)
        return model_cases(cls, fixed, *shapes, setting="outputs_per_block", outputs_per_block=1)


def stage(k: KernelBuilder, source: GlobalArray, target: SharedView, count: int) -> None:
    """Copy the first `count` (a multiple of PIECE) activations to shared memory, by all threads of the block. A barrier is the
    caller's."""
    pieces, threads = count // PIECE, k.threads
    mine, place = advance(source, k.tid.x, PIECE), advance(target.start(), k.tid.x, PIECE)

    def move(starts: range) -> None:
        loaded = [k.load_vector(mine[start * PIECE], PIECE) for start in starts]
        for start, values in zip(starts, loaded, strict=True):
            k.store(place[start * PIECE], values)

    whole = pieces // threads * threads
    for start in range(0, whole, threads * LOADS_AHEAD):
        move(range(start, min(start + threads * LOADS_AHEAD, whole), threads))
    if whole < pieces:
        with k.when(k.tid.x < pieces - whole):
            move(range(whole, whole + 1))
