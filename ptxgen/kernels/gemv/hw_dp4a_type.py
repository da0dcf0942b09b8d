"""What the strategies of hw_dp4a have in common: their settings and what follows from them. How they go along a row stands in
chunks.py, what they write in hw_dp4a.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import EARLY_SM, RING_SHARED, LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import gamma
from ptxgen.kernels.collective.all_gather import MOST_RANKS
from ptxgen.kernels.collective.digit_words import DigitWords
from ptxgen.kernels.collective.gather_planes import GatherPlanes
from ptxgen.kernels.gemv.digit_gemv_type import DigitGemvType
from ptxgen.kernels.gemv.fragments import Fragments
from ptxgen.kernels.gemv.received_digits import in_parts, received_arguments, whole_row
from ptxgen.kernels.gemv.ring_layout import LINE, PIECE, RingLayout
from ptxgen.kernels.gemv.shared_digits import Layout, chunks, dynamic_bytes
from ptxgen.kernels.joined import BlockMatrix
from ptxgen.kernels.norm.rmsnorm import root_units
from ptxgen.kernels.norm.squares import total_chain
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32, U64

MULTIPROCESSORS = 132
"""Of a large GPU: settings are chosen for so many. No bit depends on it."""


RING_ROOM: Final = 132 * 1024
"""LaunchConfig.shared_room of kernels with rings, which follow others that read weights through the L1 cache. In steps of an
H200 the 8B took 1573 us where the driver chose and 1513 with this, the 1.5B 692 and 659; with 164 KB the 8B lost 6 to 12 us,
with 196 the 7B 40. Where all kernels of a step asked for it, it was 1 us of the 8B in the same run."""

HOLDING: Final = RING_ROOM
"""Bytes of shared memory of a block with a ring, from which on it holds back a launch that has none
and is no gather. The head of the 8B, which began early behind a last product of 223 KB, took 140 us instead of 112 (H200): as
it seems, multiprocessors stay divided into L1 and shared memory as the product wanted it while blocks of one launch follow
those of the other. Launches with rings gain by beginning early: held back, those of the 7B cost 34 us of 1492."""

LATE_FROM: Final = MULTIPROCESSORS * 3 // 4
"""The first block of a launch that finds no multiprocessor before the launch before it ends: attention of few positions leaves
100, gate and up fewer. The 139 KB that such a block of the output projection of the 8B asks for in Q8_0 were in the way of
the end of attention, and of its activations. In steps of an H200: that one and down of Q8_0 2134 -> 2113 us, 8B 1484 ->
1478, 7B 1468 -> 1457; of all blocks 2155 in Q8_0. With the copies of earlier blocks paced 13, 10 and 8 us less of 2893, 1894
and 1860 (H100)."""

NO_RING: Final[Mapping[str, Any]] = {"ring": 0, "holds_next": False}
"""Of whoever has another geometry than the kernel that it is made of."""

MOST_RESIDENT: Final = 2048
"""Threads of a multiprocessor."""

MOST_SLOTS: Final = 32
"""Of a ring: more are of no use."""


def blocks_at_once(threads: int, resident_threads: int) -> int:
    """Blocks of so many threads that a large GPU holds, whose multiprocessors each hold `resident_threads`."""
    return MULTIPROCESSORS * max(1, resident_threads // threads)


@dataclass(frozen=True)
class HwDp4aType(DigitGemvType):
    """A warp takes rows_per_warp rows, a block num_warps warps. Where a half or a quarter of a warp has a lane for every
    fragment of a row (k up to 1024 or 512 of Q4_K), each half or quarter takes rows_per_warp rows of its own, so a warp has two
    or four times as many, with the bits of a whole warp. The loads of the first `ahead` steps of weights are issued before the
    activations are touched; with `pdl` before the wait for the kernel that writes them (programmatic dependent launch, sm_90
    and later), which takes more registers: between other kernels it is slower. A multiprocessor's registers hold
    resident_threads threads, of Q6_K half as many. With `turns` a warp takes so many times as many rows, some after others,
    while the activations stay in shared memory (turns.py), which must hold all of a single row's. With `ring` weights are
    copied ahead into so many slots of shared memory a warp (weight_ring.py), on sm_90 and later, where `ahead` says nothing;
    with `holds_next`, too, the launch behind may start when the blocks have their sums, and not at once. `between` says that.

    normed: the activations are an RMSNorm that is not complete: digits, scales and sums stand for gamma * x, and this kernel
    multiplies the scales by 1 / sqrt(mean(x^2) + eps), with the bits of rmsnorm_digits and the kernel without `normed`.
    squares: f32[k / 32], the sums of x^2 of each 32 (kernels/norm/squares.py); eps: f32 scalar. For one row of activations.

    row_parts: so many ranks have made the digits of a part of the row each. Of digits, scales, sums and squares this rank's
    part is read, and that of each other as words that it has sent, or is sending, as send_digits does. inbox: u64[row_parts,
    words]; number: u32[1], of the message that each block waits for, a bounded time; rank: u32. 1: all of the row is there."""

    paced: ClassVar[bool] = False
    """Whether the copies of a slot of a ring are begun, before the launch before has ended, when those of the slot before have
    come, and not all at once. What is under way delays the end of that launch."""
    late_from: ClassVar[int | None] = None
    """Where copies are paced, the block from which on blocks begin those of slots behind the first when they have waited for
    the launch before, and asked for the activations; None where none does."""
    weights: ClassVar[tuple[str, ...]] = ("w",)
    """The matrices that a warp has rows of: those of the same numbers of each."""
    # One warp, or share of it, has a row to itself.
    bit_free: ClassVar[tuple[str, ...]] = (
        "num_warps", "rows_per_warp", "ahead", "resident_threads", "pdl", "turns", "ring", "holds_next",
    )  # fmt: skip
    # A matrix may have fewer rows, and its activations may not fit; the last is of its neighbours, too.
    of_shape: ClassVar[tuple[str, ...]] = ("turns", "ring", "holds_next")
    num_warps: int = field(default=8, kw_only=True)
    rows_per_warp: int = field(default=2, kw_only=True)
    ahead: int = field(default=2, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    normed: bool = field(default=False, kw_only=True)
    row_parts: int = field(default=1, kw_only=True)
    turns: int = field(default=1, kw_only=True)
    ring: int = field(default=0, kw_only=True)
    holds_next: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normed and self.activation_rows > 1:
            raise ArgumentError(f"{self.name} takes one row that it normalises by itself, got {self.activation_rows}")
        require(self, "num_warps", high=32)
        require(self, "rows_per_warp", high=8)
        require(self, "ahead", high=8)
        require(self, "resident_threads", high=MOST_RESIDENT)
        require(self, "turns", high=WARP_SIZE)
        require(self, "ring", low=0, high=MOST_SLOTS)
        require(self, "row_parts", high=MOST_RANKS)
        if self.row_parts > 1:
            self._check_parts()
        if self.holds_next and not self.ring:
            raise ArgumentError(f"{self.name}: holds_next must be False without a ring")
        if self.ring:
            self._check_ring()
        elif self.turns > 1 and len(chunks(self.format, self.k, 1, self.digits)) > 1:
            raise ArgumentError(
                f"{self.name}: turns must be 1 where activations do not fit shared memory at once, as {self.digits} digits of "
                f"k={self.k}"
            )
        if self.in_turns:
            self._check_turns()

    def _check_parts(self) -> None:
        require(self, "k", multiple=BLOCK * self.row_parts)
        if self.activation_rows > 1 or self.pdl:
            raise ArgumentError(f"{self.name} takes one row in parts, without pdl, got {self.activation_rows}, pdl={self.pdl}")
        if not self.stages_at_once:
            raise ArgumentError(
                f"{self.name}: row_parts must be 1 where activations do not fit shared memory at once, as {self.digits} digits "
                f"of k={self.k}"
            )

    @property
    def stages_at_once(self) -> bool:
        """Whether all activations of a row are in shared memory together."""
        return self.in_turns or len(chunks(self.format, self.k, 1, self.digits)) == 1

    @property
    def part_words(self) -> DigitWords:
        """What is received of a part."""
        return DigitWords(self.k // self.row_parts, self.digits, self.normed)

    def _check_ring(self) -> None:
        if self.pdl:
            raise ArgumentError(
                f"{self.name}: with a ring, which is filled before the launch before has ended, pdl must be False"
            )
        if not self.ring_layout.aligned:
            raise ArgumentError(
                f"{self.name}: ring must be 0 where rows are no whole pieces of {PIECE} bytes, as those of k={self.k}"
            )
        taken = self.asked_for + self.static_bytes
        if taken > RING_SHARED:
            raise ArgumentError(
                f"{self.name}: ring must be smaller than {self.ring}, with which a block takes {taken} bytes of shared memory; "
                f"there are {RING_SHARED}"
            )

    def _check_turns(self) -> None:
        what = "turns" if self.turns > 1 else "rows_per_warp"
        if self.activation_rows > 1:
            one = "turns must be 1" if self.turns > 1 else "ring must be 0"
            raise ArgumentError(f"{self.name}: {one} for several rows of activations, here {self.activation_rows}")
        most, of = self._most_results
        if self.warp_results > most:
            raise ArgumentError(
                f"{self.name}: {what} must be fewer than {getattr(self, what)}, in which a warp has {self.warp_results} rows: "
                f"there are {most} {of}"
            )

    @property
    def least_sm(self) -> int:
        return EARLY_SM if self.pdl or self.ring else 75

    @property
    def waits_inside(self) -> bool:  # type: ignore[override]
        return self.ring > 0

    @property
    def frees_next_inside(self) -> bool:  # type: ignore[override]
        return self.holds_next

    def between(self, before: KernelType | None, behind: KernelType | None) -> Self:
        if not self.ring:
            return self
        beside = isinstance(behind, GatherPlanes) or (isinstance(behind, HwDp4aType) and behind.ring > 0)
        return replace(self, holds_next=self.launch().dynamic_shared > HOLDING and not beside)

    @property
    def in_turns(self) -> bool:
        """Whether a warp's sums end in the lanes of their rows, as several turns leave them, and all its rows are there."""
        return self.turns > 1 or self.ring > 0

    def matrix_of_block(self, k: KernelBuilder) -> BlockMatrix | None:
        """Which of several matrices a block has rows of; None where there is one."""
        return None

    @property
    def fragments(self) -> Fragments:
        return Fragments.of_shares(self.format, self.k)

    @property
    def threads_at_once(self) -> int:
        """Threads whose registers a multiprocessor holds. A lane that loads bytes which others have their codes in, too, takes
        as many times the registers, and has as many times the values in flight."""
        return max(1, self.resident_threads // self.format.shared_bytes)

    @property
    def chain(self) -> int:
        return self.fragments.steps * self.runs + (WARP_SIZE.bit_length() - 1)

    @property
    def lane_results(self) -> int:
        """Results whose rows of weights a lane has fragments of at once, which share each read of the activations."""
        return self.rows_per_warp // len(self.weights)

    @property
    def results_at_once(self) -> int:
        """Results whose rows of weights a warp has at once."""
        return self.lane_results * self.fragments.shares

    @property
    def warp_results(self) -> int:
        """Results of a warp in all."""
        return self.results_at_once * self.turns

    @property
    def heights(self) -> tuple[int, ...]:
        """The rows of each matrix whose rows warps share out."""
        return (self.n,)

    @property
    def block_rows(self) -> int:
        """Results of a block of threads."""
        return self.num_warps * self.warp_results

    @property
    def whole(self) -> bool:
        """Whether every warp has `warp_results` rows from `first_row` on."""
        return self.n % self.block_rows == 0

    def first_row(self, k: KernelBuilder) -> Value:
        """The number of the warp's first result."""
        first: Value = (k.ctaid.x * self.num_warps + k.warp) * self.warp_results
        return first

    @property
    def loads_rows_first(self) -> bool:
        """Whether the assembler must leave the first loads of weights where they are written, before the activations are
        staged: where they are whole rows of all blocks of the (first) matrix, which a large GPU holds at once, in one turn.
        Else more in flight make others wait. In steps of one row on an H200: 13 us of 501 won by o and down of Qwen3-0.6B, 5 of
        429 by q, k and v of the 1B, 83 of 1632 lost by all products of Qwen2.5-7B."""
        if self.activation_rows > 1:
            return False
        together = blocks_at_once(self.num_warps * WARP_SIZE, self.threads_at_once)
        return self.fragments.steps <= self.ahead and -(-self.n // self.block_rows) <= together

    @property
    def asked_for(self) -> int:
        """Bytes of shared memory that the launch asks for; 0 where what is static does."""
        if self.ring:
            return self.ringed_bytes(self.ring)
        return dynamic_bytes(self.format, self.k, self.activation_rows, self.digits)

    @property
    def ring_layout(self) -> RingLayout:
        """The ring of a warp."""
        return RingLayout(self.fragments, self.rows_per_warp, self.turns, self.ring)

    @property
    def ring_start(self) -> int:
        """Where the rings of a block begin: behind all activations."""
        return -(-Layout(self.format, self.k, 1, self.digits).bytes // LINE) * LINE

    def ringed_bytes(self, count: int) -> int:
        """Bytes of shared memory that all activations and rings of so many slots take."""
        return self.ring_start + self.num_warps * replace(self.ring_layout, asked=count).bytes

    def ringed(self, most: int, least: int = 2) -> Self | None:
        """This one with a ring of as many slots as fit, `least` to `most`; None where there is no room for so many."""
        fitting = (count for count in range(most, least - 1, -1) if self.fits_ring(count))
        count = next(fitting, None)
        return None if count is None else replace(self, **{**NO_RING, "ring": count}, pdl=False)

    def fits_ring(self, count: int) -> bool:
        """Whether a ring can have so many slots, and a warp its rows."""
        room = self.ringed_bytes(count) + self.static_bytes <= RING_SHARED
        return self.ring_layout.aligned and room and self.warp_results <= self._most_results[0]

    @property
    def static_bytes(self) -> int:
        """Bytes of the static arrays in shared memory that stand beside activations and rings."""
        return F32.bytes * self.k // BLOCK if self.row_parts > 1 and self.normed else 0

    @property
    def _most_results(self) -> tuple[int, str]:
        """How many results a warp may have whose sums end in the lanes of their rows, and of what there are so many."""
        return min((WARP_SIZE, "lanes"), (min(self.heights), "rows of a matrix"))

    def launch(self) -> LaunchConfig:
        threads = self.num_warps * WARP_SIZE
        resident = max(1, self.threads_at_once // threads)
        blocks = -(-self.n // self.block_rows)
        room = RING_ROOM if self.ring else 0
        return LaunchConfig(blocks, threads, resident, early=self.pdl, dynamic_shared=self.asked_for, shared_room=room)

    def signature(self) -> Signature:
        norm: Signature = {"squares": read(F32, self.k // BLOCK), "eps": Scalar(F32, low=0.0)} if self.normed else {}
        whole = {**super().signature(), **norm}
        return received_arguments(whole, self.part_words, self.row_parts) if self.row_parts > 1 else whole

    @property
    def relative_bound(self) -> float:
        """With `normed` also the root of the sum of the squares, and one product."""
        if not self.normed:
            return super().relative_bound
        blocks = self.k // BLOCK
        return super().relative_bound + gamma(ceil(root_units(chain=0, tree=total_chain(blocks))) + 1)

    def _in_float64(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.row_parts > 1:
            arguments = {**arguments, **whole_row(arguments, self.part_words, self.row_parts)}
        weights, x = super()._in_float64(arguments)
        if self.normed:
            x = x / np.sqrt(arguments["squares"].astype("f8").sum() / self.k + float(arguments["eps"]))
        return weights, x

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        inputs = super().inputs(rng)
        if self.normed:
            inputs |= {"squares": rng.chisquare(BLOCK, self.k // BLOCK).astype(np.float32), "eps": np.float32(1e-5)}
        return in_parts(rng, inputs, self.part_words, self.row_parts) if self.row_parts > 1 else inputs

    def work(self) -> Work:
        product = super().work()
        received = (self.row_parts - 1) * self.part_words.count * (U64.bytes - U32.bytes)
        return Work(product.flops, product.bytes + received + (F32.bytes * self.k // BLOCK if self.normed else 0))

    @classmethod
    def _narrow(cls) -> dict[str, Any]:
        return {"num_warps": 2, "rows_per_warp": 1, "ahead": 3, "resident_threads": 256}
