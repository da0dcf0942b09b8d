"""The all-gather of one host: every rank's slice of some rows goes into the memory of all ranks, with one launch on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, addresses, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32, U32

THREADS: Final = 256
MOST_BLOCKS: Final = 32
"""Fewer than any GPU has multiprocessors: all of a launch are there at once, so none waits for one that cannot start."""
MOST_RANKS: Final = 8


@register
@dataclass(frozen=True)
class AllGather(KernelType):
    """y = the slices x of all ranks side by side, for m rows of n, in the memory of each rank.

    x: f32[m, n / ranks], this rank's slice; y: f32[m, n], of which the columns from rank * n / ranks on are that slice;
    flags: u32[blocks, ranks], zeros before the first launch, and nobody else's (k.signal_peers); ys, peers: u64[ranks], the
    addresses of y and of flags of each rank, this one's included; rank: u32.

    Bits are moved, none is computed with. One launch on each rank is one gather (LaunchConfig.ranks). It stores this rank's
    slice into y of all ranks, tells each other rank that it has (a release at `.sys` scope, by each block for its share) and
    waits, a bounded time, until each other rank has told as much. After it y is whole here, and this rank has told that it has
    come so far. Nothing of it changes from launch to launch but the numbers in `flags`, which go on by one, so a graph that
    holds it can be replayed.

    **Two y in turn.** The next gather may write y of a rank as soon as that rank has told its share of *this* one, which it
    does before anything reads what was gathered. So y must not be gathered into again by the next gather; by the one after
    that it may. Let rank A be ahead, and rank B still read y0, which gather k has filled. Gather k + 1 goes into another y1. A
    writes y0 of B in gather k + 2 at the earliest, which in A's order comes after gather k + 1, where A has waited for B's
    signal k + 1. B gives that after all that is before it in B's order, the reads of y0 among it, and it is a release which A
    has acquired: the reads come before the writes. Gathers of other shapes with flags of their own count as gathers as well, as
    long as all ranks launch the same in the same order. The emulator's sanitiser finds what breaks this as a race.
    """

    family: ClassVar[str] = "collective"
    name = "all_gather"
    n: int
    ranks: int
    m: int = 1

    def __post_init__(self) -> None:
        require(self, "n", "m")
        require(self, "ranks", low=2, high=MOST_RANKS)
        if self.n % self.ranks:
            raise ArgumentError(f"{self.name}: n must be a multiple of ranks, and {self.n} is none of {self.ranks}")

    @property
    def columns(self) -> int:
        """Of a rank's slice."""
        return self.n // self.ranks

    @property
    def width(self) -> int:
        """Values of one access: a slice must start at multiples of its size."""
        return next(width for width in (4, 2, 1) if self.columns % width == 0)

    @property
    def pieces(self) -> int:
        """Accesses of `width` values that a slice of all rows takes."""
        return self.m * self.columns // self.width

    @property
    def blocks(self) -> int:
        """Of the grid; each stores, signals and waits for a share of the pieces."""
        return min(-(-self.pieces // THREADS), MOST_BLOCKS)

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.m, self.n),
            "x": read(F32, self.m, self.columns),
            "flags": update(U32, self.blocks, self.ranks),
            "ys": addresses("y", self.ranks),
            "peers": addresses("flags", self.ranks),
            "rank": Scalar(U32, 0, self.ranks - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.blocks, block=THREADS, ranks=self.ranks)

    def emit(self, k: KernelBuilder) -> None:
        rank, per_row = k.arg.rank, self.columns // self.width
        others = [(rank + away) % self.ranks for away in range(1, self.ranks)]  # each begins with another one
        rows = [k.arg.y, *(k.arg.ys[other] for other in others)]
        x, first = k.arg.x.at(0, 0), rank * self.columns
        for i in k.strided(k.ctaid.x * THREADS + k.tid.x, self.pieces, step=self.blocks * THREADS):
            piece = x[i * self.width]
            values = k.load_vector(piece, self.width) if self.width > 1 else k.load(piece)
            row = i // per_row
            column = first + (i - row * per_row) * self.width
            for y in rows:
                k.store(y[row, column], values)
        number = k.signal_peers(k.arg.flags, k.arg.peers, rank, k.ctaid.x)
        k.wait_for_peers(k.arg.flags, rank, k.ctaid.x, number)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        whole = np.concatenate(list(arguments["x"]), axis=1)
        return {"y": np.stack([whole] * self.ranks), "flags": arguments["flags"] + np.uint32(1)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """None: values are copied."""
        return {"y": 0.0, "flags": 0.0}

    def work(self) -> Work:
        """Of a rank: its slice is read once, and written once for each."""
        return Work(flops=0, bytes=F32.bytes * self.m * self.columns * (1 + self.ranks))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, ranks, m in ((896, 2, 1), (4096, 4, 1), (14336, 8, 1), (896, 4, 9), (4096, 2, 3), (36, 2, 5), (14, 2, 1)):
            yield cls(n=n, ranks=ranks, m=m)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Slices of all ranks, and the numbers of some gather, the last before 2^32 among them."""
        ranks = self.ranks
        number = rng.choice(np.array([0, 1, 2**31 - 1, 2**32 - 1], np.uint32))
        return {
            "y": np.zeros((ranks, self.m, self.n), np.float32),
            "x": rng.standard_normal((ranks, self.m, self.columns), np.float32),
            "flags": np.full((ranks, self.blocks, ranks), number, np.uint32),
            "ys": np.zeros((ranks, ranks), np.uint64),
            "peers": np.zeros((ranks, ranks), np.uint64),
            "rank": np.arange(ranks, dtype=np.uint32),
        }
