"""What attention writes of its result: `out` as f32 here; int8_planes.py and f16_split.py add the form that an output
projection reads. A form says its arguments, what it does on the device, its reference, bounds and work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.parts import KernelPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.shape import Named
from ptxgen.target import DEFAULT

Runs = Iterator[tuple[Value, tuple[Value, ...], Value]]
"""Results of a block's heads, four side by side: the place of the first among them, the results, and whether they are the
thread's own. 8 lanes side by side have 32 of them."""

Store = Callable[[Value, Any], None]
"""Writes to `out`: the place from the block's first result on, and one value or several side by side."""

Own = Callable[[], tuple[Value, Value]]
"""The place of the thread's result in the token's row, and whether it has one."""

Result = Callable[[], Value]
"""Writes what is left to be computed of a result."""

HeadValues = Iterator[tuple[Value, Result]]
"""The results of a head: for each d < head_dim, d and the result, in the thread that has it to write."""

StoreHead = Callable[[Value, Result], None]
"""Writes to `out`: d and the result."""

Results = Callable[[Value, Value], HeadValues]
"""Computes those of a token and a head. All threads must come there."""


@dataclass(frozen=True)
class OutShape:
    """out: f32[tokens, heads, head_dim]; a token's row has `size` values. head_dim: of results, so of values."""

    tokens: int
    heads: int
    head_dim: int

    @property
    def size(self) -> int:
        """Values of a row."""
        return self.heads * self.head_dim

    def rows(self, array: Any) -> NDArray[Any]:
        """As [tokens, size]."""
        return np.asarray(array).reshape(self.tokens, self.size)


@dataclass(frozen=True)
class Output(KernelPart):
    """`out` alone. suffix: what a kernel's name ends with; least_sm: of a reduction in a launch of its own; one_token: whether
    the kernels of one token can write it."""

    suffix: ClassVar[str] = ""
    least_sm: ClassVar[int] = DEFAULT.sm
    one_token: ClassVar[bool] = True

    def require(self, kernel: Named, shape: OutShape) -> None:
        """Raise ArgumentError unless the form exists of heads of this size."""

    def require_windows(self, kernel: KernelType, windows: int) -> None:
        """Raise ArgumentError unless blocks whose heads fill so many windows (f16_split.py) can write it."""

    def require_head_dim(self, kernel: KernelType, head_dim: int) -> None:
        """Raise ArgumentError unless a reduction of heads of this size can write it."""

    def arrays(self, shape: OutShape) -> Signature:
        """The arguments beside `out`."""
        return {}

    def unwritten(self, shape: OutShape) -> dict[str, NDArray[Any]]:
        """Those before the launch, for inputs of tests."""
        return {}

    def of(self, shape: OutShape, out: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """What stands in them for `out`."""
        return {}

    def bounds(self, shape: OutShape, out: NDArray[Any], bound: Any) -> dict[str, NDArray[Any]]:
        """How far off they may be where `out` is off by `bound`."""
        return {}

    def work(self, shape: OutShape) -> Work:
        """What is to be done beside the writing of `out`."""
        return Work(0, 0)

    def blocks(self, shape: OutShape) -> int:
        """Of the tokens, the number of blocks in that dimension of the grid."""
        return shape.tokens

    def write_head(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, found: HeadValues, store: StoreHead, own: Own
    ) -> None:
        """Write one head, of which a thread has one value at most, or as many as every other. All threads must come here."""
        for d, result in found:
            store(d, result)

    def write_runs(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, first: Value, values: int, runs: Runs, store: Store
    ) -> None:
        """Write the block's heads, from `first` on, of which there may be `values` values. All threads must come here."""
        for place, results, live in runs:
            with k.when(live):
                store(place, results)

    def reduction_grid(self, shape: OutShape) -> tuple[int, int]:
        """The grid of a reduction in a launch of its own: a block a head and token."""
        return shape.heads, shape.tokens

    def write_reduced(self, k: KernelBuilder, shape: OutShape, results: Results) -> None:
        """The body of that launch."""
        token, head = k.ctaid.y, k.ctaid.x

        def store(d: Value, result: Result) -> None:
            k.store(k.arg.out[token, head, d], result())

        def own() -> tuple[Value, Value]:
            return head * shape.head_dim + k.tid.x, k.tid.x < shape.head_dim

        self.write_head(k, shape, token, results(token, head), store, own)


def ready(value: Value) -> Result:
    """A result of which nothing is left to be computed."""
    return lambda: value
