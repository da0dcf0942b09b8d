"""The activation halves of a block in shared memory, copied some windows ahead of their use, and read there by `ldmatrix`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.iteration import advance, further
from ptxgen.kernels.quantize.activation_halves import STEPS, TILE
from ptxgen.target import WARP_SIZE
from ptxgen.types import F16, U32

if TYPE_CHECKING:
    from ptxgen.kernels.gemm.half_mma_gemm import HalfMmaGemm

PIECE: Final = 16
"""Bytes of an asynchronous copy: a row of a core matrix."""


class HalfRing:
    """For the warps that share part `part` of k: its `stages` stages, of a window of the block's rows each. A stage is as the
    tiles of `halves` lie in global memory, one after another. `starts`: the block's first tile, which the others follow, or
    each of them, and a piece further for each thread; `thread`: a thread's number among these warps. All threads of the block
    call each method."""

    def __init__(
        self, kernel: HalfMmaGemm, k: KernelBuilder, starts: Sequence[GlobalArray], part: Index, thread: Value
    ) -> None:  # fmt: skip
        self.kernel, self.k = kernel, k
        self._part, self._starts = part, starts
        self._base = k.dynamic_shared(U32).start().base + part * (kernel.stages * kernel.stage_bytes)
        self._thread = thread
        # Lane l names row l % 8 of the matrix l / 8; with one part there are two matrices, and lanes of others name no address.
        rows = 2 * kernel.parts * TILE
        self._get = self._base + (k.lane & (rows - 1)) * PIECE

    def fetch(self, turn: Index) -> None:
        """Start to copy the window of a turn, if there is one; a group of copies in any case."""
        kernel, k = self.kernel, self.k
        window = turn * kernel.split + self._part
        last = isinstance(window, int) and window < kernel.windows
        with nullcontext() if last else k.when(k.u32(window) < kernel.windows):
            size = (STEPS + 1) * kernel.parts * 2 * TILE * TILE
            target = self._moved(self._base + self._thread * PIECE, turn)
            sources = [advance(start, window, size) for start in self._starts]
            for place in range(kernel.column_tiles):
                one = place if len(sources) > 1 else 0
                source = further(sources[one], (place - one) * kernel.windows * size)
                self._copy(source, target, place * size * F16.bytes, size * F16.bytes // PIECE)
        k.cp_async_commit_group()

    def _copy(self, source: GlobalArray, target: Value, offset: int, pieces: int) -> None:
        k, threads = self.k, WARP_SIZE * self.kernel.warps
        for start in range(0, pieces, threads):
            with k.when(self._thread < pieces - start) if start + threads > pieces else nullcontext():
                element = Element("shared", target.register, offset + start * PIECE, U32)
                k.cp_async(element.address, source[start * (PIECE // F16.bytes)].address, PIECE, cache="cg")

    def arrive(self) -> None:
        """Wait until the whole block has the stage of the next turn, and has done with that of the turn before."""
        self.k.cp_async_wait_group(self.kernel.stages - 2)
        self.k.barrier()

    def reader(self, turn: Value) -> Value:
        """Where the lane finds its row of a core matrix, in the first step of a turn."""
        return self._moved(self._get, turn)

    def _moved(self, place: Value, turn: Index) -> Value:
        stage = turn % self.kernel.stages
        if isinstance(stage, int):
            return place + stage * self.kernel.stage_bytes if stage else place
        moved: Value = self.k.mad(stage, self.kernel.stage_bytes, place)
        return moved
