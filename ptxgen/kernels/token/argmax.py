"""The index of the largest value of rows: greedy choice of the next tokens without copying the logits to the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.kernels.token.allowed import allowed_argument, allowed_bits, penalty, restricted, some_allowed, words
from ptxgen.kernels.token.rank import rank_of, ranks_of
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32, U64

THREADS: Final = 256  # few enough to find room beside blocks of the launch before
UNROLL: Final = 4  # loads in flight a thread
SLICE: Final = THREADS * UNROLL * 4  # values that a block has in flight at once: one wait for memory, then it is done
MOST_SLICES: Final = WARP_SIZE  # the last block compares what they found with a lane each
NOT_A_NUMBER = 0xFFFFFFFF
"""What `argmax` gives if a value is NaN: no token has this id, so nothing can go on with it unnoticed."""


@register(m=[None, GIVEN], allowed=[False])
@register(m=[GIVEN], allowed=[True])
@dataclass(frozen=True)
class ArgMax(KernelType):
    """out[i] = the index of the largest of row i of x, the lowest one among equals (-0 equals +0); 0xFFFFFFFF if any is NaN.

    out: u32[1]; x: f32[n], n below 2^30; or u32[m] and f32[m, n]. A block for each slice of 4096 values of a row, and at most
    32: then slices are larger. Each leaves what it finds, and the last one to come compares: candidates: u32[slices, 2] or
    u32[m, slices, 2], the index of a slice's largest value and its rank, see rank.py (0xFFFFFFFF and 0 of a slice with a NaN);
    counters: u32[1] or u32[m], zero before and after a launch. Neither is there with one slice.

    With `allowed`, allowed: u32[m, n / 32 rounded up]: value j of row i is allowed if bit j % 32 of [i, j // 32] is 1.
    -infinity is added to the others, so a NaN counts wherever it is, and infinity that is not allowed is one. If all are
    -infinity, the index is 0.
    """

    family: ClassVar[str] = "token"
    n: int
    m: int | None = field(default=None, kw_only=True)
    allowed: bool = field(default=False, kw_only=True, metadata=HIDDEN)

    def __post_init__(self) -> None:
        require(self, "n", high=2**30 - 1)
        if self.m is not None or self.allowed:
            require(self, "m", high=MOST_ROWS)

    @property
    def name(self) -> str:
        return f"{'' if self.m is None else 'batched_'}{'allowed_' if self.allowed else ''}argmax"

    @property
    def rows(self) -> tuple[int, ...]:
        """The dimension that arrays have for rows, if they have one."""
        return () if self.m is None else (self.m,)

    @property
    def width(self) -> int:
        """Values of one load."""
        return 4 if self.n % 4 == 0 else 1

    @property
    def slices(self) -> int:
        """Blocks that share a row."""
        return min(-(-self.n // SLICE), MOST_SLICES)

    @property
    def slice_size(self) -> int:
        """Values of a slice; the last may have fewer."""
        return -(-self.n // (self.slices * self.width)) * self.width

    @property
    def scratch(self) -> tuple[str, ...]:
        return ("candidates", "counters") if self.slices > 1 else ()

    def signature(self) -> Signature:
        each = self.rows or (1,)
        signature: Signature = {"out": write(U32, *each, align=4), "x": read(F32, *self.rows, self.n)}
        if self.slices > 1:
            signature["candidates"] = update(U32, *self.rows, self.slices, 2, align=8, partial=True)
            signature["counters"] = update(U32, *each, align=4, zeros=True)
        if self.allowed:
            signature["allowed"] = allowed_argument(self.rows[0], self.n)
        return signature

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(self.slices, *self.rows), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        if self.m is None:
            self._find(k, k.arg.x)
        else:
            self._find(k, k.arg.x.at(k.ctaid.y, 0), k.ctaid.y)

    def _find(self, k: KernelBuilder, x: GlobalArray, *row: Value) -> None:
        """The index for the row that starts at `x`; row: its number, where arrays have a dimension for it."""
        number = row[0] if row else 0
        found = k.block_max(self._of_slice(k, x))
        if self.slices == 1:
            with k.when(k.tid.x == 0):
                k.store(k.arg.out[number], _unpacked(k, found)[0])
            return
        candidates = k.arg.candidates.at(*row, 0, 0)
        with k.when(k.tid.x == 0):
            k.store(candidates[k.ctaid.x * 2], _unpacked(k, found))
        with k.when(k.last_block(k.arg.counters[number], self.slices) & (k.warp == 0)):
            slice = k.min(k.lane, self.slices - 1)
            index, rank = k.load_vector(candidates[slice * 2], 2)
            index, _ = _unpacked(k, k.warp_max(_packed(k, index, rank)))
            with k.when(k.lane == 0):
                k.store(k.arg.out[number], index)

    def _of_slice(self, k: KernelBuilder, x: GlobalArray) -> Value:
        """The thread's candidate, packed. A thread past the end of the slice looks at its last values again, which changes
        nothing, so that no load waits for a test."""
        start = k.ctaid.x * self.slice_size if self.slices > 1 else k.u32(0)
        last = k.min(start + self.slice_size, self.n) - self.width
        first = start + k.tid.x * self.width
        best, index, bad = k.f32(float("-inf")), k.variable(k.min(first, last), U32), k.u32(0)
        stride = THREADS * self.width
        unroll = min(UNROLL, -(-self.slice_size // stride))
        for done in k.strided(0, self.slice_size, step=stride * unroll):
            places = [k.min(first + done + step * stride, last) for step in range(unroll)]
            loaded = [self._load(k, x, place) for place in places]
            for place, values in zip(places, loaded, strict=True):
                for number, value in enumerate(values):  # in the order of their indices: the first of equals stays
                    better = value > best
                    k.assign(best, k.select(better, value, best))
                    k.assign(index, k.select(better, place + number if number else place, index))
                    k.assign(bad, k.select(value != value, 1, bad))
        nan, rank = bad != 0, rank_of(k, k.select(best == 0.0, 0.0, best))
        return _packed(k, k.select(nan, NOT_A_NUMBER, index), k.select(nan, 0, rank))

    def _load(self, k: KernelBuilder, x: GlobalArray, place: Value) -> list[Value]:
        """As many neighbours as a load has; bits of what is allowed are of one word."""
        bits = allowed_bits(k, k.ctaid.y, place) if self.allowed else None
        loaded = list(k.load_vector(x[place], self.width)) if self.width > 1 else [k.load(x[place])]
        return loaded if bits is None else [value + penalty(k, bits, number) for number, value in enumerate(loaded)]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x = restricted(**arguments) if self.allowed else arguments["x"]
        if self.m is None:
            return self._of_row(x)
        rows = [self._of_row(row) for row in x]
        found = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        return {name: array.reshape(self.m) if array.shape == (self.m, 1) else array for name, array in found.items()}

    def _of_row(self, x: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        index = NOT_A_NUMBER if np.isnan(x).any() else int(np.argmax(x))
        out = {"out": np.array([index], np.uint32)}
        if self.slices == 1:
            return out
        starts = range(0, self.n, self.slice_size)
        candidates = [_candidate(x[start : start + self.slice_size], start) for start in starts]
        return {**out, "candidates": np.array(candidates, np.uint32), "counters": np.zeros(1, np.uint32)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return dict.fromkeys(("out", *self.scratch), 0.0)

    def work(self) -> Work:
        rows = self.m or 1
        bits = Work(rows * self.n, U32.bytes * rows * words(self.n)) if self.allowed else Work(0, 0)
        return Work(flops=rows * self.n + bits.flops, bytes=rows * (F32.bytes * self.n + U32.bytes) + bits.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n in (151936, 1, 31, 1025, 4097, 12292):
            yield cls(n)
        for n, m in ((20004, 2), (31, 5)):
            yield cls(n, m=m)
            yield cls(n, m=m, allowed=True)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Few distinct values, so that the largest occurs often."""
        rows = self.m or 1
        x = rng.integers(-50, 5, (*self.rows, self.n)).astype(np.float32)
        inputs = {"out": np.zeros(rows, np.uint32), "x": x}
        if self.slices > 1:
            inputs["candidates"] = np.full(rows * self.slices * 2, NOT_A_NUMBER, np.uint32)
            inputs["counters"] = np.zeros(rows, np.uint32)
        if self.allowed:
            inputs["allowed"] = some_allowed(rng, rows, self.n)
        return inputs


def _packed(k: KernelBuilder, index: Value, rank: Value) -> Value:
    """u64, larger for a better candidate: for a larger value, and the lower index of equal ones."""
    packed: Value = ~k.op("mov", (index, rank), result=U64)
    return packed


def _unpacked(k: KernelBuilder, packed: Value) -> tuple[Value, Value]:
    """Index and rank."""
    index, rank = k.write("mov", [~packed], result=U32)
    return index, rank


def _candidate(x: NDArray[np.float32], start: int) -> tuple[int, int]:
    """Index and rank of the largest value of a slice that starts at `start`."""
    if np.isnan(x).any():
        return NOT_A_NUMBER, 0
    place = int(np.argmax(x))
    return start + place, int(ranks_of(x[place] + np.zeros(1, np.float32))[0])  # -0 + 0 is +0
