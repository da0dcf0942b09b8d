"""The epilogue that leaves a deferred RMSNorm, so that the norm takes no launch: kernels that multiply a matrix by the norm
multiply it by the int8 planes of y gamma, and divide by the root of the mean square: W2 (y gamma / rms) is (W2 (y gamma)) /
rms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.collective.plane_message import PlaneMessage
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.epilogue import Exact, Float64
from ptxgen.kernels.gemv.l2_prefetch import BORROWED, PrefetchedRows
from ptxgen.kernels.gemv.planes import Planes
from ptxgen.kernels.norm.squares import exact_squares, group_squares, squares_bound
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.shape import require_of
from ptxgen.types import F32


@dataclass(frozen=True)
class LeaveNorm(Planes):
    """What an RMSNorm of y needs, for kernels whose source is a deferred norm. y_digits, y_scales and y_sums are the int8
    planes of the f32 products y * gamma; gamma: f32[n]; squares: f32[n / 32], the sum of y^2 of each 32 rows as group_squares
    (norm/squares.py) makes it.

    prefetches: how many rows of the next launch's matrices are prefetched into L2, every prefetch_every-th from the first on
    (l2_prefetch.py). The matrices are next_w and next_w2: u8[prefetch_rows, row_bytes], of n columns. No bit depends on it. 0:
    no prefetch, and there are no such arguments."""

    suffix: ClassVar[str] = "_normed"
    summary: ClassVar[str] = "and what an RMSNorm of y needs"
    prefetches: int = 0
    prefetch_every: int = 1
    prefetch_rows: int = 0

    def check(self, blocks: Blocks) -> None:
        super().check(blocks)
        require_of(blocks.name, self, "prefetches", low=0)
        require_of(blocks.name, self, "prefetch_every")
        require_of(blocks.name, self, "prefetch_rows", low=0)
        if self.prefetches and (self.prefetches - 1) * self.prefetch_every >= self.prefetch_rows:
            raise ArgumentError(
                f"{blocks.name}: prefetches must be {-(-self.prefetch_rows // self.prefetch_every)} or fewer: there are "
                f"{self.prefetch_rows} rows, and each {self.prefetch_every} are prefetched, got {self.prefetches}"
            )
        if blocks.source.normed:
            raise ArgumentError(f"{blocks.name} leaves a norm and completes none: normed must be False")

    @property
    def borrowed(self) -> Mapping[str, str]:
        """Its arguments that are constant ones of the next launch, by the names that they have there."""
        return BORROWED if self.prefetches else {}

    def prefetched(self, blocks: Blocks) -> PrefetchedRows:
        """What it prefetches."""
        return PrefetchedRows(self.prefetches, self.prefetch_every, self.prefetch_rows, blocks.n, blocks.format)

    def signature(self, blocks: Blocks, arguments: Signature) -> Signature:
        more: Signature = {"squares": write(F32, blocks.n // BLOCK), "gamma": read(F32, blocks.n, constant=True)}
        prefetched = self.prefetched(blocks).signature() if self.prefetches else {}
        return super().signature(blocks, arguments) | more | prefetched

    def begin(self, k: KernelBuilder, blocks: Blocks) -> PlaneMessage | None:
        """Where activations are staged at once, this comes when the weights have come for the most part."""
        if self.prefetches:
            self.prefetched(blocks).write(k, blocks.count)
        return super().begin(k, blocks)

    def needs(self, k: KernelBuilder, row: Value) -> Element:
        element: Element = k.arg.gamma[row]
        return element

    def quantised(self, k: KernelBuilder, row: Value, y: Value, loaded: Value | None, live: Value) -> Value:
        assert loaded is not None
        squares = group_squares(k, [y])
        with k.when(live & (k.lane == 0)):
            k.store(k.arg.squares[row // BLOCK], squares)
        return y * loaded

    def reference(self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64]) -> Exact:
        y = values[0]
        found = super().reference(blocks, arguments, [y * arguments["gamma"].astype("f8")])
        return Exact(y, {**found.more, "squares": exact_squares(y)})

    def tolerance(
        self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64], bounds: Sequence[Float64]
    ) -> Exact:
        """Squares and planes are those of any y that near, the latter of one more product."""
        y, bound = values[0], bounds[0]
        gamma = np.abs(arguments["gamma"].astype("f8"))
        of_product = bound * gamma + UNIT * (np.abs(y) + bound) * gamma + np.finfo(np.float32).tiny
        found = super().tolerance(blocks, arguments, [y * arguments["gamma"].astype("f8")], [of_product])
        return Exact(bound, {**found.more, "squares": squares_bound(y, bound)})

    def inputs(self, blocks: Blocks, rng: np.random.Generator) -> dict[str, Any]:
        inputs = super().inputs(blocks, rng) | {"squares": np.full(blocks.n // BLOCK, np.nan, np.float32)}
        inputs |= {"gamma": rng.uniform(-0.5, 2.0, blocks.n).astype(np.float32)}
        return inputs | {name: blocks.format.random_blocks(rng, self.prefetch_rows, blocks.n) for name in self.borrowed}

    def work(self, blocks: Blocks) -> Work:
        """A product more for each quantised value, a product and an addition for each square."""
        planes = super().work(blocks)
        return Work(flops=planes.flops + 3 * blocks.n, bytes=planes.bytes + F32.bytes * (blocks.n + blocks.n // BLOCK))

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        three = {"digits": 3, "out_digits": 3}
        yield {"k": max(fixed["format"].block, 3 * BLOCK), "n": 32, "num_warps": 2, **three}  # two blocks a group
        if fixed["format"].name == "Q4_K":
            yield {
                "k": 2048,
                "n": 96,
                "num_warps": 16,
                "rows_per_warp": 2,
                "row_groups": 2,
                **three,
            }  # half a block is past the end
            yield {"k": 18944, "n": 32, "digits": 1, "out_digits": 2, "num_warps": 2, "rows_per_warp": 1}  # a loop
            yield {"k": 3584, "n": 64, "num_warps": 12, "rows_per_warp": 1, "stages": 2, **three}  # blocks that share groups
            yield {"k": 1536, "n": 64, "digits": 2, "out_digits": 1, "num_warps": 8, "row_groups": 2}  # a partial step alone
        if fixed["format"].name == "Q8_0":
            yield {
                "k": 896,
                "n": 32,
                "num_warps": 4,
                "rows_per_warp": 1,
                "row_groups": 4,
                **three,
            }  # a partial step after others
            yield {"k": 4096, "n": 64, "rows_per_warp": 1, "prefetches": 7, "prefetch_every": 8, "prefetch_rows": 53, **three}
