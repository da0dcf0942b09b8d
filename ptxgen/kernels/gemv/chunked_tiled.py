"""The tiled GEMV for any k: a loop over chunks of x that fit shared memory. All warps of a block take part in every load and
barrier, also those whose row is past the end of the matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.formats import COMMON
from ptxgen.kernels.gemv.dot import Dot, LaneDot
from ptxgen.kernels.gemv.gemv_type import GemvType, model_cases
from ptxgen.kernels.gemv.iteration import IterationSpace, advance
from ptxgen.kernels.gemv.tiled import PIECE, stage
from ptxgen.kernels.gemv.warp_row import ROWS
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

CHUNK = 4096
"""Activations of a chunk: 16 KB, so that shared memory does not limit how many blocks a multiprocessor holds."""


@register(format=COMMON.values())
@dataclass(frozen=True)
class ChunkedTiledGemv(GemvType):
    """y = W x, tiled in chunks: x staged in shared memory 4096 values at a time, one warp an output.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]; k is a multiple of 4. n need not be one of
    outputs_per_block."""

    outputs_per_block: int = field(default=ROWS, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "k", multiple=max(PIECE, self.format.block))
        require(self, "outputs_per_block", high=32)

    name_pattern = "chunked_tiled_{format}_gemv"

    @property
    def chunk(self) -> int:
        """Activations of a whole chunk."""
        return min(CHUNK, self.k)

    @property
    def chunks(self) -> int:
        """Whole chunks."""
        return self.k // self.chunk

    @property
    def rest(self) -> int:
        """Activations of the last chunk if it is not whole, else 0."""
        return self.k % self.chunk

    def dot(self, k: int) -> Dot:
        """How the lanes go along a chunk of k values."""
        return Dot(IterationSpace(self.format, k))

    @property
    def chain(self) -> int:
        one = self.dot(self.chunk)
        rest = self.dot(self.rest).additions if self.rest else 0
        return self.chunks * one.additions + rest + one.chain - one.additions

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // self.outputs_per_block), block=self.outputs_per_block * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        row = k.ctaid.x * self.outputs_per_block + k.warp
        dot = self.dot(self.chunk)
        lane = dot.space.lane(k)
        weights = lane.in_row(k.arg.w.at(k.min(row, self.n - 1) if self.n % self.outputs_per_block else row, 0))
        staged = k.shared(F32, self.chunk)
        x = lane.in_vector(staged.start())
        sums = LaneDot(k, dot, lane, [weights], [x]).zeros()
        chunk_bytes = self.format.row_bytes(self.chunk)
        for i in k.strided(0, self.chunks):
            k.barrier()  # the other warps may still be reading the last chunk
            stage(k, advance(k.arg.x, i, self.chunk), staged, self.chunk)
            k.barrier()
            LaneDot(k, dot, lane, [advance(weights, i, chunk_bytes)], [x]).add_to(sums)
        if self.rest:
            k.barrier()
            stage(k, k.arg.x.at(self.chunks * self.chunk), staged, self.rest)
            k.barrier()
            last = self.dot(self.rest)  # may end in a partial step, which whole chunks do not
            LaneDot(k, last, replace(lane, space=last.space), [weights.at(self.chunks * chunk_bytes)], [x]).add_to(sums)
        total = k.warp_sum(LaneDot(k, dot, lane, [weights], [x]).combined(sums)[0][0])
        with k.when((k.lane == 0) & (row < self.n)):
            k.store(k.arg.y[row], total)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[ChunkedTiledGemv]:
        shapes = (9728, 7), (256, 1, 1), (8192, 5, 3), (18944, 5)
        return model_cases(cls, fixed, *shapes, setting="outputs_per_block", outputs_per_block=1)
