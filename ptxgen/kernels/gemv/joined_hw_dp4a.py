"""hw_dp4a for two or three matrices that are multiplied by the same activations: q, k and v, or gate and up, in one launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, Self

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import RING_SHARED, LaunchConfig
from ptxgen.formats import REPACKED, find
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.hw_dp4a_type import NO_RING, blocks_at_once
from ptxgen.kernels.joined import Joined, MatrixOfBlock
from ptxgen.kernels.registry import register

JOINED = (find("Q4_K"), find("Q5_K"), find("Q8_0"), find("Q6_K"), *REPACKED.values())
"""The formats that have it in the catalogue: those of most models. Of others a kernel is made by its class."""

LEAST_RINGED = 6 << 20
"""Bytes of weights from which on a ring is faster. In steps of an H200 q, k and v of the 7B (9.3 MB) and the 8B (14.2) won 1.5
us a layer; those of the 1B (3.5), the 1.5B and Qwen3-0.6B lost 0.2 to 0.5."""

MOST_ROWS = 3
"""Of a warp with a ring."""


@register(format=JOINED)
@dataclass(frozen=True)
class JoinedHwDp4aGemv(Joined, HwDp4aGemv):
    """y = W x, y2 = W2 x and, with n3, y3 = W3 x on quantised activations: hw_dp4a for matrices of n, n2 and n3 rows in one
    launch, with the very bits of a launch each.

    y: f32[n], y2: f32[n2], y3: f32[n3]; w, w2, w3: u8[n, row_bytes] and so on; digits, scales and sums as in hw_dp4a. A block
    of threads has rows of one matrix; those of the second follow those of the first."""

    family: ClassVar[str] = "gemm"
    batched_alike = False
    name_pattern = "joined_hw_dp4a_{format}_gemv"
    most_rounds: ClassVar[float] = 1
    """Of blocks with a ring that are there at once on a large GPU, in which it has all of its own."""
    n2: int = field(kw_only=True)
    n3: int = field(default=0, kw_only=True)

    @property
    def block_rows(self) -> int:
        return super(Joined, self).block_rows  # that of hw_dp4a, not the one that Joined asks for

    @property
    def heights(self) -> tuple[int, ...]:
        return self.matrices

    def batched(self, m: int) -> tuple[()]:
        return ()

    def with_residual(self) -> None:
        return None

    def with_weight_ring(self) -> Self | None:
        """By eight warps a block, of as few rows as let all blocks be there at once, or nearly all."""
        if sum(self.heights) * self.format.row_bytes(self.k) < LEAST_RINGED:
            return None
        for rounds, rows, slots in product((1, self.most_rounds), range(1, MOST_ROWS + 1), (2, 1)):
            one = self._of_ring(rows)
            at_once = blocks_at_once(one.launch().threads, one.threads_at_once)
            ringed = one.ringed(slots, slots) if one.launch().blocks <= rounds * at_once else None
            if ringed is not None and ringed.launch().resident * ringed.launch().dynamic_shared <= RING_SHARED:
                return ringed
        return None

    def _of_ring(self, rows: int) -> Self:
        """This one by blocks of eight warps, each of which has so many rows."""
        return replace(self, num_warps=8, rows_per_warp=rows, turns=1, pdl=False, **NO_RING)

    def launch(self) -> LaunchConfig:
        return replace(super().launch(), grid=(self.row_blocks, 1, 1))

    def matrix_of_block(self, k: KernelBuilder) -> MatrixOfBlock:
        return MatrixOfBlock(self, k, k.ctaid.x, at_once=("w",))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[JoinedHwDp4aGemv]:
        narrow: dict[str, Any] = {"num_warps": 2, "rows_per_warp": 1, "resident_threads": 256}
        yield cls(k=512, n=7, n2=2, n3=5, digits=3, **narrow, **fixed)
        if fixed["format"].name == "Q4_K":
            yield cls(k=4096, n=33, n2=8, digits=3, rows_per_warp=2, num_warps=4, **fixed)
            yield cls(k=1536, n=9, n2=4, n3=3, digits=3, normed=True, **narrow, **fixed)
            yield cls(k=4096, n=33, n2=8, n3=7, digits=3, rows_per_warp=3, num_warps=4, ring=2, **fixed)
            yield cls(k=3584, n=9, n2=4, n3=3, digits=3, normed=True, row_parts=4, **narrow, **fixed)
            yield cls(k=18944, n=2, n2=4, digits=1, **narrow | {"num_warps": 1}, **fixed)  # a loop
