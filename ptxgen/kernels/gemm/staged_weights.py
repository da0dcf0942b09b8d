"""Tiles of 16 rows and a window of weights in shared memory, the blocks as they are in global memory: all lanes of a warp copy
them, and each reads its two rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.formats import Format
from ptxgen.formats.packed import PREFETCH
from ptxgen.kernels.gemm.f16_gemm_type import CATALOGUED
from ptxgen.kernels.gemm.staged_f16 import PIECE
from ptxgen.kernels.gemm.weight_tile import TILE_ROWS
from ptxgen.kernels.quantize.f16_split import TILE
from ptxgen.kernels.segments import MatrixOfBlock
from ptxgen.target import WARP_SIZE
from ptxgen.types import U8, U32

IN_PIECES = tuple(format for format in CATALOGUED if format.half_bytes)
"""The formats whose blocks lie in memory as asynchronous copies want them."""


@dataclass(frozen=True)
class TileLayout:
    """Where the rows of a tile lie."""

    format: Format

    @property
    def row_pieces(self) -> int:
        """Pieces of 16 bytes of a row."""
        return self.format.block_bytes // PIECE

    @property
    def row_stride(self) -> int:
        """Bytes from one row to the next: an odd number of pieces, so that eight lanes of two rows read from all banks."""
        return PIECE * (self.row_pieces | 1)

    @property
    def bytes(self) -> int:
        """Of a tile."""
        return TILE_ROWS * self.row_stride


class StagedWeights:
    """The copies and the reads of a warp whose block has rows of this matrix. Neighbouring lanes copy neighbouring pieces, so
    that every sector is read from the L2 cache once; reads must wait for all lanes of the warp."""

    def __init__(self, k: KernelBuilder, layout: TileLayout, row_bytes: int, matrix: MatrixOfBlock) -> None:
        self.k, self.layout, self.matrix = k, layout, matrix
        self.lane = layout.format.half_lane(k, k.lane & 3)
        self._copies = [_Copy(k, layout, row_bytes, number) for number in range(0, TILE_ROWS * layout.row_pieces, WARP_SIZE)]
        self._row = k.lane // 4 * layout.row_stride

    def copy(self, stage: Value, start: GlobalArray, first_row: Value, guard: Value | None) -> None:
        """Begin to copy the tile of which the first row, of this number, has its window there; of rows past the last, zeros."""
        k, matrix = self.k, self.matrix
        for copy in self._copies:
            present = [condition for condition in (guard, copy.mine) if condition is not None]
            to, source = Element("shared", (stage + copy.to).register, 0, U8), start.at(copy.source)[0]
            taken = None if matrix.whole else k.select(first_row + copy.row < matrix.n, k.u32(PIECE), 0)
            both = present[0] & present[1] if len(present) > 1 else present[0] if present else None
            k.copy_async(to, source, PIECE, taken=taken, guard=both, cache="cg", prefetch=PREFETCH)

    def words(self, stage: Value) -> list[list[Value]]:
        """Of the lane's two rows of the tile that lies there, as `unpack_halves` takes them."""
        k, words = self.k, []
        for half in (0, 1):
            row = SharedPart(k, stage + self._row, U8, half * TILE * self.layout.row_stride)
            pieces: Sequence[tuple[Element, int]] = self.layout.format.f16_pieces(row, self.lane)
            words.append([word for place, size in pieces for word in k.load_vector(place, size // U32.bytes, U32)])
        return words


class _Copy:
    """One of a lane's copies of a tile: of the piece of this number and as many more as the lane's own number."""

    def __init__(self, k: KernelBuilder, layout: TileLayout, row_bytes: int, number: int) -> None:
        piece = k.lane + number if number else k.lane
        self.row, column = piece // layout.row_pieces, piece % layout.row_pieces * PIECE
        self.source = k.mad(self.row, row_bytes, column)
        self.to = k.mad(self.row, layout.row_stride, column)
        over = number + WARP_SIZE - TILE_ROWS * layout.row_pieces
        self.mine = k.lane < WARP_SIZE - over if over > 0 else None
