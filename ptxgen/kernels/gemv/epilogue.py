"""Epilogues of a GEMV on int8 planes: what becomes of the sum of a row of weights before it leaves the kernel. A kernel has a
chain of them. Each takes the result of the one before it, and gives its own; without any, the sum is stored as y.

Here is what an epilogue says, and how the warps of a block store rows that each epilogue of the chain finishes by itself. Those
that need the results of neighbouring rows stand in planes.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import Element, GlobalArray
from ptxgen.dsl.parts import KernelPart
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.chunks import Warp

Arrays = dict[str, NDArray[Any]]
Float64 = NDArray[np.float64]


class Exact(NamedTuple):
    """y: f64[n], the result that an epilogue hands on; more: what it writes beside y, by argument."""

    y: Float64
    more: Arrays


@dataclass(frozen=True)
class Epilogue(KernelPart):
    """Base of an epilogue, of which a chain works on y: f32[n]. `blocks` are those of the kernel that has it; their n is the
    rows of y. A subclass says what differs from handing on the (first) sum."""

    suffix: ClassVar[str] = ""
    """What it adds to the name of a kernel."""
    onto: ClassVar[bool] = False
    """Whether it is added to the residual stream: its kernel is the last one before a norm, launched beside attention or the
    gate and up projections (suited.py)."""
    paced: ClassVar[bool] = False
    """See Blocks.paced."""
    kept_bytes: ClassVar[int] = 0
    """See Blocks.kept_bytes; for each matrix that a warp has rows of."""

    def check(self, blocks: Blocks) -> None:
        """Raise ArgumentError if these blocks cannot have it."""

    def scratch(self, blocks: Blocks) -> tuple[str, ...]:
        """Its arguments that are for launches of this kernel alone."""
        return ()

    def signature(self, blocks: Blocks, arguments: Signature) -> Signature:
        """The arguments of a kernel, of which those before it in the chain are given."""
        return arguments

    # Emission

    def needs(self, k: KernelBuilder, row: Value) -> Element | None:
        """What `result` needs of a row beside the sums, f32: loaded so early that no warp waits for it."""
        return None

    def result(self, k: KernelBuilder, values: Sequence[Value], loaded: Value | None) -> Value:
        """The result of a row: from its sum in each of the matrices, for the first epilogue of a chain, or from the result of
        the epilogue before. loaded: the element that `needs` says."""
        return values[0]

    # Reference: values are f64[n], one of each matrix for the first epilogue of a chain

    def reference(self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64]) -> Exact:
        """What it makes of exact values."""
        return Exact(values[0], {})

    def tolerance(
        self, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64], bounds: Sequence[Float64]
    ) -> Exact:
        """How far its results may be off, of any values that are within these bounds of the exact ones."""
        return Exact(bounds[0], {})

    def inputs(self, blocks: Blocks, rng: np.random.Generator) -> dict[str, Any]:
        """Random arguments that it adds, or has otherwise."""
        return {}

    def work(self, blocks: Blocks) -> Work:
        """What it adds to the work of the products."""
        return Work(0, 0)

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Sample parameters of kernels whose last epilogue it is; fixed: the fields that the name fixes."""
        raise NotImplementedError


Chain = tuple[Epilogue, ...]


def reference(chain: Chain, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64]) -> Arrays:
    """What all epilogues write, of the exact products."""
    more: Arrays = {}
    for epilogue in chain:
        found = epilogue.reference(blocks, arguments, values)
        values, more = [found.y], more | found.more
    return {"y": values[0], **more}


def tolerance(
    chain: Chain, blocks: Blocks, arguments: Mapping[str, Any], values: Sequence[Float64], bounds: Sequence[Float64]
) -> Arrays:
    """How far what they write may be off, of products within these bounds."""
    more: Arrays = {}
    for epilogue in chain:
        found = epilogue.tolerance(blocks, arguments, values, bounds)
        values = [epilogue.reference(blocks, arguments, values).y]
        bounds, more = [found.y], more | found.more
    return {"y": bounds[0], **more}


class Store(Protocol):
    """How the results of a block of threads are stored."""

    def early(self, warp: Warp) -> Sequence[Sequence[Value | None]]:
        """Write the loads that come before the sums are known."""
        ...

    def sums(self, warp: Warp, early: Sequence[Sequence[Value | None]]) -> None:
        """Write all else, from `warp.totals`, of which each lane has a share."""
        ...

    def own_sums(self, warp: Warp, sums: Sequence[Value], early: Sequence[Sequence[Value | None]]) -> None:
        """The same, from the sum of each row of the warp in each matrix, in the lane that has it (Warp.own)."""
        ...


@dataclass(frozen=True)
class StoredRows:
    """Each row by itself. batch: y is f32[m, n], and no epilogue follows."""

    chain: Chain
    batch: bool

    def early(self, warp: Warp) -> list[list[Value | None]]:
        """See Store. Where a block has fewer rows than others nothing is loaded: a warp without a row of its own is given the
        last one, which another warp may be writing."""
        if warp.blocks.in_row_groups:
            return []
        if warp.blocks.n % warp.blocks.block_rows:
            return [[None] * len(self.chain) for _ in warp.numbers]
        return [[_loaded(warp.k, one.needs(warp.k, row)) for one in self.chain] for row in warp.numbers]

    def sums(self, warp: Warp, early: Sequence[Sequence[Value | None]]) -> None:
        """See Store."""
        k = warp.k
        sums = [[warp.sum(total) for total in totals] for totals in warp.totals]
        y = warp.result()
        with k.when(warp.lane.place == 0):
            for i, (of_row, loaded) in enumerate(zip(sums, early, strict=True)):
                row = warp.number(i)
                with nullcontext() if warp.whole else k.when(row < warp.n):
                    self._store(k, y, row, of_row, loaded)

    def own_sums(self, warp: Warp, sums: Sequence[Value], early: Sequence[Sequence[Value | None]]) -> None:
        """See Store."""
        k = warp.k
        y, row = warp.result(), warp.first_row + warp.own
        has_row = warp.own < warp.blocks.warp_results
        with k.when(has_row if warp.whole else has_row & (row >= warp.first_new)):
            self._store(k, y, row, sums, [None] * len(self.chain))

    def _store(
        self, k: KernelBuilder, y: GlobalArray, row: Value, values: Sequence[Value], early: Sequence[Value | None]
    ) -> None:
        """Store what a row of weights gave with each token."""
        if self.batch:
            for number, total in enumerate(values):
                k.store(y[number, row], total)
            return
        held = [
            _loaded(k, one.needs(k, row)) if loaded is None else loaded for one, loaded in zip(self.chain, early, strict=True)
        ]
        place = y[row]
        for one, loaded in zip(self.chain, held, strict=True):
            values = [one.result(k, values, loaded)]
        k.store(place, values[0])


def _loaded(k: KernelBuilder, element: Element | None) -> Value | None:
    return None if element is None else k.load(element)
