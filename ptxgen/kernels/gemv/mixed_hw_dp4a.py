"""hw_dp4a for matrices of two formats that are multiplied by the same activations, in one launch: q, k and v of files whose v
is of a better format than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.formats import REPACKED, Format, find
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.hw_dp4a_type import MOST_RESIDENT, NO_RING, blocks_at_once
from ptxgen.kernels.gemv.joined_hw_dp4a import JoinedHwDp4aGemv
from ptxgen.kernels.gemv.shared_digits import chunks
from ptxgen.kernels.joined import LastMatrix
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE

MOST_ROUNDS = 2.5
"""Of blocks, of RESIDENT threads a multiprocessor: those of the last matrix, the slowest, begin last. In steps of an H200 1.5
rounds won 3 us of 433, 2.9 lost 8 of 1644."""

RESIDENT = 512

OWN = ("last", "last_rows_per_warp")
"""The fields that kernels of one format do not have."""


@register(format=(find("Q4_K"), find("Q5_K")), last=(find("Q6_K"), REPACKED["Q6_K_ALIGNED"]))
@dataclass(frozen=True)
class MixedHwDp4aGemv(JoinedHwDp4aGemv):
    """y = W x and y2 = W2 x of one format, y3 = W3 x of another, on quantised activations: hw_dp4a for matrices of n, n2 and n3
    rows in one launch, with the very bits of a launch each.

    y: f32[n], y2: f32[n2], y3: f32[n3]; w and w2: u8[n, row_bytes] and so on in `format`, w3 in `last`; digits, scales and sums
    as in hw_dp4a. A block of threads has rows of one matrix; the last blocks have those of the third, last_rows_per_warp a
    warp. The activations stand in shared memory as the format of a block's rows wants them, all at once. Of formats that the
    catalogue does not have it for it is made by its class."""

    most_rounds: ClassVar[float] = 1.1
    """The last blocks are small: 278, of which 264 are there at once, won 15 us of a step of 1502 of the 8B (H200)."""
    last: Format = field(kw_only=True, metadata=HIDDEN)
    last_rows_per_warp: int = field(default=2, kw_only=True)

    bit_free = (*JoinedHwDp4aGemv.bit_free, "last_rows_per_warp")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "n3", low=1)
        require(self, "last_rows_per_warp", high=8)
        if self.last == self.format:
            raise ArgumentError(f"{self.name} is for two formats, got {self.format} for both: one is joined_hw_dp4a's")
        if any(len(chunks(part.format, self.k, 1, self.digits)) > 1 for part in self._parts):
            raise ArgumentError(f"{self.name}: {self.digits} digits of k={self.k} do not fit shared memory at once")

    @classmethod
    def of(cls, kernel: HwDp4aGemv, same: HwDp4aGemv, other: HwDp4aGemv) -> MixedHwDp4aGemv | None:
        """With the settings of the first, but one turn where a matrix has too few rows; None where activations do not fit
        shared memory at once, and where a large GPU would have the blocks in more rounds than MOST_ROUNDS."""
        if any(len(chunks(one.format, one.k, 1, one.digits)) > 1 for one in (kernel, other)):
            return None
        last_rows = max(1, other.rows_per_warp // other.format.shared_bytes)  # with the registers of the first format's rows
        last_results = last_rows * other.fragments.shares * kernel.turns
        fit = same.n >= kernel.warp_results and last_results <= min(other.n, WARP_SIZE)
        settings = {**kernel.parameters(), "turns": kernel.turns if fit else 1, **NO_RING}
        mixed = cls(**settings, format=kernel.format, n2=same.n, n3=other.n, last=other.format, last_rows_per_warp=last_rows)
        launch = mixed.launch()
        return mixed if launch.grid[0] <= MOST_ROUNDS * blocks_at_once(launch.threads, RESIDENT) else None

    def _takes_parts(self, parts: int) -> bool:
        return all(part._takes_parts(parts) for part in self._parts)

    def fits_ring(self, count: int) -> bool:
        return all(part.fits_ring(count) for part in self._parts)

    def _of_ring(self, rows: int) -> Self:
        return replace(super()._of_ring(rows), last_rows_per_warp=min(rows, 2))  # blocks of the last format are larger

    @property
    def name(self) -> str:
        return f"mixed_hw_dp4a_{self.format.id}_{self.last.id}_gemv"

    @property
    def _parts(self) -> tuple[_First, _Last]:
        """The kernels of the blocks of both formats."""
        shared = {name: value for name, value in self.parameters().items() if name not in ("n", "n2", "n3", *OWN)}
        first = _First(**shared, format=self.format, n=self.n, n2=self.n2)
        own = {
            "rows_per_warp": self.last_rows_per_warp,
            "before": first.row_blocks,
            # As many threads at once as of the first.
            "resident_threads": min(MOST_RESIDENT, self.resident_threads * self.last.shared_bytes),
        }
        return first, _Last(**shared | own, format=self.last, n=self.n3)

    @property
    def _apart(self) -> tuple[Any, ...]:
        first, last = self._parts
        settings = {name: value for name, value in last.parameters().items() if name != "before"}
        return (*first._apart, HwDp4aGemv(**settings, format=self.last))

    def launch(self) -> LaunchConfig:
        first, last = self._parts
        blocks = first.row_blocks + -(-last.n // last.block_rows)
        return replace(first.launch(), grid=(blocks, 1, 1), dynamic_shared=max(first.asked_for, last.asked_for))

    def emit(self, k: KernelBuilder) -> None:
        first, last = self._parts
        with k.when(k.ctaid.x < first.row_blocks):
            first.emit(k)
        with k.otherwise():
            last.emit(k)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[Self]:
        narrow: dict[str, Any] = {"num_warps": 2, "rows_per_warp": 1, "last_rows_per_warp": 1, "resident_threads": 256}
        yield cls(k=512, n=7, n2=2, n3=5, digits=3, **narrow, **fixed)
        if fixed["format"].name == "Q4_K":
            yield cls(k=1536, n=9, n2=4, n3=11, digits=3, normed=True, **narrow | {"last_rows_per_warp": 2}, **fixed)
            if fixed["last"].block_bytes % 16 == 0:
                yield cls(k=3584, n=33, n2=8, n3=9, digits=3, num_warps=4, rows_per_warp=3, ring=2, **fixed)
                yield cls(k=4096, n=9, n2=4, n3=5, digits=3, normed=True, row_parts=2, **narrow, **fixed)
            yield cls(k=1024, n=33, n2=8, n3=9, digits=1, num_warps=4, rows_per_warp=2, **fixed)  # rows side by side


@dataclass(frozen=True)
class _First(JoinedHwDp4aGemv):
    """The blocks that have rows of the matrices of the first format."""

    name: ClassVar[str] = "the blocks of the first format"

    @property
    def asked_for(self) -> int:
        return _staged(self)


@dataclass(frozen=True)
class _Last(HwDp4aGemv):
    """The blocks of the last format, which come behind so many others."""

    name: ClassVar[str] = "the blocks of the last format"
    before: int = field(kw_only=True)

    @property
    def asked_for(self) -> int:
        return _staged(self)

    def signature(self) -> Signature:
        return {f"{name}3" if name in ("y", "w") else name: argument for name, argument in super().signature().items()}

    def matrix_of_block(self, k: KernelBuilder) -> LastMatrix:
        return LastMatrix(k, number=3, n=self.n, block=k.ctaid.x - self.before, block_rows=self.block_rows)


def _staged(kernel: HwDp4aGemv) -> int:
    """Bytes of the activations and rings as these blocks want them: never static memory, of which the other blocks would want
    more."""
    return kernel.ringed_bytes(kernel.ring)
