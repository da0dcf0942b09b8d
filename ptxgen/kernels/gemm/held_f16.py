"""The f16 split of activations in the registers of a warp: a window of all rows of a block, which stays while tiles of weights
go by."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.formats.half_weights import Pair
from ptxgen.kernels.gemm.block_grid import moved
from ptxgen.kernels.gemm.f16_gemm_type import F16GemmType
from ptxgen.kernels.quantize.f16_split import STEPS, TILE, tiles_of
from ptxgen.types import B32

CORE = TILE * TILE
"""f16 of a core matrix: 8 of 8 rows."""

ABREAST = TILE // 2
"""The most rows whose parts stand side by side in a tile."""

# Of activations: other blocks need them, too.
_KEPT = "L1::evict_last"


class HeldWindow:
    """A window of the block's rows of activations in registers, clamped to their last tile; duplicates are not stored."""

    def __init__(self, kernel: F16GemmType, k: KernelBuilder, column: Index, window: Value) -> None:
        """column: the number of the block along m."""
        steps, blocks = STEPS + (kernel.format.minimum is not None), kernel.blocks
        if blocks.abreast:
            self._hold_abreast(kernel, k, window, steps)
            return
        self._parts: list[list[list[Pair]]] = []
        self.scales: list[list[Value]] = []
        for place in range(blocks.column_tiles):
            last = tiles_of(kernel.m) - 1
            tile: Value | int
            if blocks.column_blocks > 1:
                tile, present = k.min(column * blocks.column_tiles + place, last), TILE
            else:
                tile = min(place, last)
                present = kernel.m - tile * TILE
            start = k.arg.halves.at(tile, window, 0, 0, 0, 0, 0)
            pairs = self._load(k, start.at(k.lane * 2), steps * kernel.parts, present)
            self._parts.append([pairs[i : i + kernel.parts] for i in range(0, len(pairs), kernel.parts)])
            first = moved(k, (k.lane & 3) * 2 + place * TILE, column, blocks.columns)
            rows = [k.min(first + i if i else first, kernel.m - 1) for i in range(2)]
            self.scales.append([k.load(k.arg.scales[row, window]) for row in rows])

    def _hold_abreast(self, kernel: F16GemmType, k: KernelBuilder, window: Value, steps: int) -> None:
        """Both parts of a tile's first rows as one right operand, the second where the last rows would be."""
        start = k.arg.halves.at(0, window, 0, 0, 0, 0, 0).at((k.lane >> 4) * (2 * CORE) + (k.lane & 15) * 2)
        cores = [(step * kernel.parts * 2 + c) * CORE for step in range(steps) for c in range(2)]
        pairs = self._words(k, [start[core] for core in cores], k.lane >> 2 & 3, kernel.m, ABREAST)
        self._parts = [[[pair] for pair in pairs]]
        first = (k.lane & 1) * 2
        rows = [k.min(first + i if i else first, kernel.m - 1) for i in range(2)]
        self.scales = [[k.load(k.arg.scales[row, window]) for row in rows]]

    def _load(self, k: KernelBuilder, start: GlobalArray, steps: int, rows: int) -> list[Pair]:
        """The right operands of so many parts of steps."""
        return self._words(k, [start[i * CORE] for i in range(2 * steps)], k.lane >> 2, rows, TILE)

    def _words(self, k: KernelBuilder, addresses: Sequence[Element], row: Value, rows: int, most: int) -> list[Pair]:
        """The lane's words there, of this row. Where there are fewer rows than there could be, the others, which are zeros, are
        not asked for: all blocks load the same activations, as many bytes together as half of the weights."""
        if rows >= most:
            words = [k.load(address, B32, evict=_KEPT) for address in addresses]
        else:
            words = [k.variable(0, B32) for _ in addresses]
            with k.when(row < rows):
                for word, address in zip(words, addresses, strict=True):
                    k.assign(word, k.load(address, B32, evict=_KEPT))
        return list(zip(words[::2], words[1::2], strict=True))

    def parts(self, place: int, number: int) -> Sequence[Pair]:
        """As ActivationWindow."""
        return self._parts[place][number]
