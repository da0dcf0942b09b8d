"""The index of the largest value of rows: greedy choice of the next tokens without copying the logits to the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, LaunchConfig, Signature, Work, read, write
from ptxgen.dsl.memory import Element, GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

THREADS = 1024
WARPS = THREADS // WARP_SIZE
UNROLL = 4  # loads in flight a thread
NOT_A_NUMBER = 0xFFFFFFFF
"""What `argmax` gives if a value is NaN: no token has this id, so nothing can go on with it unnoticed."""


@register
@dataclass(frozen=True)
class ArgMax(KernelType):
    """out[0] = the index of the largest of x, the lowest one among equals (-0 equals +0); 0xFFFFFFFF if any x is NaN.

    out: u32[1]; x: f32[n], n below 2^30. One block.
    """

    family: ClassVar[str] = "token"
    name = "argmax"
    n: int

    def __post_init__(self) -> None:
        require(self, "n", high=2**30 - 1)

    @property
    def width(self) -> int:
        """Values of one load."""
        return 4 if self.n % 4 == 0 else 1

    def batched(self, m: int) -> tuple[KernelType, ...]:
        return (BatchedArgMax(self.n, m=m),) if type(self) is ArgMax else ()

    def signature(self) -> Signature:
        return {"out": write(U32, 1, align=4), "x": read(F32, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1, block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        # A thread that finds nothing above -inf stands for its first value; one that has none loses to every index below n.
        best, index = k.f32(float("-inf")), k.u32(k.tid.x * self.width) + 0
        bad = k.u32(0)
        row = self._values(k)
        stride = THREADS * self.width
        blocks = self.n // (stride * UNROLL)

        def look(start: Value, values: list[Value]) -> None:
            """Take the values from index `start` on into account, in the order of their indices."""
            for place, value in enumerate(values):
                better = value > best
                k.assign(best, k.select(better, value, best))
                k.assign(index, k.select(better, start + place if place else start, index))
                k.assign(bad, k.select(value != value, 1, bad))

        if blocks:
            end = blocks * stride * UNROLL
            for start in k.strided(k.tid.x * self.width, end, step=stride * UNROLL):
                x = row.at(start)
                loaded = [self._load(k, x[step * stride]) for step in range(UNROLL)]
                for step, values in enumerate(loaded):
                    look(start + step * stride, values)
        for step in range(blocks * stride * UNROLL, self.n, stride):
            start = k.tid.x * self.width + step
            with k.when(start < self.n):
                look(start, self._load(k, row[start]))
        self._choose(k, best, index, k.block_max(bad))

    def _values(self, k: KernelBuilder) -> GlobalArray:
        """Where a block's values start."""
        values: GlobalArray = k.arg.x
        return values

    def _result(self, k: KernelBuilder) -> Element:
        """What a block writes."""
        result: Element = k.arg.out[0]
        return result

    def _load(self, k: KernelBuilder, element: Element) -> list[Value]:
        return list(k.load_vector(element, self.width)) if self.width > 1 else [k.load(element)]

    def _choose(self, k: KernelBuilder, best: Value, index: Value, bad: Value) -> None:
        """The best of the block's candidates, written by its first thread."""
        bests, indices = k.shared(F32, WARPS), k.shared(U32, WARPS)
        best, index = self._warp_best(k, best, index)
        with k.when(k.lane == 0):
            k.store(bests[k.warp], best)
            k.store(indices[k.warp], index)
        k.barrier()
        best, index = self._warp_best(k, k.load(bests[k.lane]), k.load(indices[k.lane]))
        with k.when(k.tid.x == 0):
            k.store(self._result(k), k.select(bad != 0, NOT_A_NUMBER, index))

    def _warp_best(self, k: KernelBuilder, best: Value, index: Value) -> tuple[Value, Value]:
        offset = WARP_SIZE // 2
        while offset:
            other, other_index = k.shuffle_xor(best, offset), k.shuffle_xor(index, offset)
            better = (other > best) | ((other == best) & (other_index < index))
            best, index = k.select(better, other, best), k.select(better, other_index, index)
            offset //= 2
        return best, index

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x = arguments["x"]
        index = NOT_A_NUMBER if np.isnan(x).any() else int(np.argmax(x))
        return {"out": np.array([index], np.uint32)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"out": 0.0}

    def work(self) -> Work:
        return Work(flops=self.n, bytes=F32.bytes * self.n + U32.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n in (49152, 151936, 1, 31, 1025, 128257):
            yield cls(n=n)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Few distinct values, so that the largest occurs often."""
        x = rng.integers(-50, 5, self.n).astype(np.float32)
        return {"out": np.zeros(1, np.uint32), "x": x}


@register
@dataclass(frozen=True)
class BatchedArgMax(ArgMax):
    """out[i] = the index of the largest of row i of x, for m rows: argmax, with its rules for equal values and NaN.

    out: u32[m]; x: f32[m, n], n below 2^30. One block a row.
    """

    name = "batched_argmax"
    m: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m")

    def signature(self) -> Signature:
        return {"out": write(U32, self.m, align=4), "x": read(F32, self.m, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.m, block=THREADS)

    def _values(self, k: KernelBuilder) -> GlobalArray:
        values: GlobalArray = k.arg.x.at(k.ctaid.x, 0)
        return values

    def _result(self, k: KernelBuilder) -> Element:
        result: Element = k.arg.out[k.ctaid.x]
        return result

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        single = super().reference
        return {"out": np.concatenate([single(x=row)["out"] for row in arguments["x"]])}

    def work(self) -> Work:
        single = super().work()
        return Work(flops=self.m * single.flops, bytes=self.m * single.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, m in ((20004, 2), (31, 5)):
            yield cls(n=n, m=m)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        rows = [super(BatchedArgMax, self).inputs(rng)["x"] for _ in range(self.m)]
        return {"out": np.zeros(self.m, np.uint32), "x": np.stack(rows)}
