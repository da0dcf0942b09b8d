"""The f16 split of activations in the shared memory of a block: windows of all its rows in a pipeline, copied there by all its
threads while earlier ones are multiplied, as descriptors of warpgroup products name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray, Index, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.quantize.f16_split import STEPS, TILE, tiles_of
from ptxgen.types import F16, F32, U32

PIECE: Final = 16
"""Bytes of an asynchronous copy."""

CORE: Final = 2 * TILE * TILE * F16.bytes
"""Bytes of a part of a step for a tile of 8 rows: two core matrices."""

# Threads with neighbouring numbers copy so many pieces in a row, which are 128 bytes of memory.
_NEIGHBOURS = 8


@dataclass(frozen=True)
class SplitStageLayout:
    """A window of `rows` rows of activations in shared memory: bytes. The f16 parts of each tile of 8 rows as they lie in
    global memory, then the scales of all rows."""

    rows: int
    parts: int

    @property
    def tiles(self) -> int:
        """Tiles of 8 rows."""
        return self.rows // TILE

    @property
    def step_bytes(self) -> int:
        """Of a tile of a step."""
        return self.parts * CORE

    @property
    def tile_bytes(self) -> int:
        """Of all steps of a tile, the sums among them."""
        return (STEPS + 1) * self.step_bytes

    @property
    def scales(self) -> int:
        """Where the scales start."""
        return self.tiles * self.tile_bytes

    @property
    def bytes(self) -> int:
        """Of all together."""
        return self.scales + self.rows * F32.bytes


class StagedF16:
    """The pipeline of a block of `threads` threads whose activations start with row `first` of m: `stages` windows, of those
    from the first to below the end that `windows` says, each `stride` bytes after the one before. Rows past the last tile are
    its again, which are not used."""

    def __init__(
        self, k: KernelBuilder, layout: SplitStageLayout, stages: int, threads: int, first: Index, m: int,
        windows: tuple[Index, Index], stride: int,
    ) -> None:  # fmt: skip
        self.k = k
        self.layout = layout
        self._stages, self._stride = stages, stride
        self._first, self._end = windows
        self.base = k.symbol_address(k.dynamic_shared(U32).name)
        self._last = self.base + (stages - 1) * stride
        self.here = k.variable(self.base, U32)
        """Where the window lies that is multiplied."""
        self.before = k.variable(self._last, U32)
        """Where the one before it lay, and the one that is to be copied next will."""
        share = threads // layout.tiles
        self._share = share // _NEIGHBOURS * _NEIGHBOURS or share
        tile, number = k.tid.x // self._share, k.tid.x % self._share
        self._copies = k.tid.x < self._share * layout.tiles
        self._number = number
        inside = k.min(tile + first // TILE, tiles_of(m) - 1)
        self._halves: GlobalArray = k.arg.halves.at(inside, 0, 0, 0, 0, 0, 0).at(number * (PIECE // F16.bytes))
        self._target = k.mad(tile, layout.tile_bytes, number * PIECE)
        self._scales: GlobalArray = k.arg.scales.at(k.min(k.tid.x + first, m - 1), 0)
        self._has_scale = k.tid.x < layout.rows
        self.reads = (k.lane & 3) * (2 * F32.bytes)

    @property
    def pieces(self) -> int:
        """How often a thread copies for a window, that of a scale among them."""
        return -(-self.layout.tile_bytes // PIECE // self._share) + 1

    def begin(self) -> None:
        """Copy the first windows, all that fit but one."""
        for window in range(self._stages - 1):
            self._copy(range(self.pieces), self._first + window if window else self._first, self.place(window))
            self.k.cp_async_commit_group()

    def place(self, number: int) -> Value:
        """Where the stage of this number lies."""
        return self.base + number * self._stride

    def arrive(self, pending: int) -> None:
        """Wait until all windows but the last `pending` that are under way are there, for all threads and for products; none of
        these multiplies the window before the present one any more."""
        k = self.k
        k.cp_async_wait_group(pending)
        k.fence_proxy(proxy="async.shared::cta")
        k.barrier()

    def copy(self, numbers: range, window: Value) -> None:
        """Make the copies of these numbers that fill the place of the window before this one."""
        self._copy(numbers, window + (self._stages - 1), self.before)

    def _copy(self, numbers: range, window: Index, place: Value) -> None:
        if not numbers:
            return
        if self.beyond(window):
            return
        more = self.guard(window)
        halves = advance(self._halves, window, (STEPS + 1) * self.layout.parts * CORE // F16.bytes)
        target = place + self._target
        for number in numbers:
            if number == self.pieces - 1:
                self._copy_scale(window, place, more)
                continue
            first = number * self._share
            to = Element("shared", target.register, first * PIECE, U32)
            rest = self.layout.tile_bytes // PIECE - first
            guard = self._all(more, self._copies, self._number < rest if rest < self._share else None)
            self._write(to, halves[first * PIECE // F16.bytes], PIECE, "cg", guard)

    def beyond(self, window: Index) -> bool:
        """Whether it is known that there is no such window."""
        return isinstance(window, int) and isinstance(self._end, int) and window >= self._end

    def guard(self, window: Index) -> Value | None:
        """Whether there is such a window; None where that is known."""
        known = isinstance(window, int) and isinstance(self._end, int)
        return None if known else window < self._end  # type: ignore[return-value]

    def _copy_scale(self, window: Index, place: Value, more: Value | None) -> None:
        target = self.k.mad(self.k.tid.x, F32.bytes, place)
        to = Element("shared", target.register, self.layout.scales, F32)
        self._write(to, advance(self._scales, window, 1)[0], F32.bytes, "ca", self._all(more, self._has_scale))

    def _write(self, to: Element, source: Element, size: int, cache: str, guard: Value | None) -> None:
        # Under a guard and not in a branch: the assembler gives up products that overlap with anything where control flows.
        self.k.copy_async(to, source, size, guard=guard, cache=cache)

    def _all(self, *conditions: Value | None) -> Value | None:
        present = [condition for condition in conditions if condition is not None]
        result = present[0] if present else None
        for condition in present[1:]:
            assert result is not None
            result = result & condition
        return result

    def turn(self) -> None:
        """The next window is the present one from now on."""
        following = self.following()
        self.k.assign(self.before, self.here)
        self.k.assign(self.here, following)

    def following(self) -> Value:
        """Where the next window lies."""
        return self.k.select(self.here == self._last, self.base, self.here + self._stride)

    def forget_before(self) -> None:
        """Let the scales of the window before the first one be zero."""
        k = self.k
        with k.when(self._has_scale):
            target = k.mad(k.tid.x, F32.bytes, self.before)
            k.store(Element("shared", target.register, self.layout.scales, F32), 0.0)

    def descriptor(self) -> Value:
        """Of the first part of the first step of the present window; `offset` says how far others are."""
        part = SharedPart(self.k, self.here, U32)
        return self.k.matrix_descriptor(part, leading=CORE // 2, stride=self.layout.tile_bytes)

    def offset(self, step: int, part: int) -> int:
        """What to add to that descriptor for a part of a step, 16 for the sums."""
        return (step * self.layout.step_bytes + part * CORE) // PIECE

    def scales(self, window: Value, tile: int) -> tuple[Value, ...]:
        """The scales of the lane's two rows of a tile of 8, of the window that lies there, with `reads` added."""
        place = self.layout.scales + tile * TILE * F32.bytes
        return self.k.load_vector(Element("shared", window.register, place, F32), 2)
