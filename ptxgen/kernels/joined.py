"""Several matrices with the same activations in one launch: what a kernel takes, gives and costs for all of them, and which of
them a block of threads has rows of. A kernel says which settings the launch of all has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.shape import require

OF_MATRIX: Final = ("y", "w")
"""The arguments that each matrix has; those of a second and a third have its number behind their names."""


@dataclass(frozen=True)
class Joined(GemvType):
    """Y = X W^T for one, two or three matrices, of n, n2 and n3 rows: w2 and y2, w3 and y3 are as w and y. Blocks of threads
    take `block_rows` rows of one matrix each; those of the second follow those of the first. What a kernel has as `scratch` is
    an array of all blocks, in this order."""

    n2: int = field(default=0, kw_only=True)
    n3: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "n2", low=0)
        require(self, "n3", low=0, high=None if self.n2 else 0)

    @property
    @abstractmethod
    def block_rows(self) -> int:
        """Rows of weights of a block of threads."""

    @property
    def matrices(self) -> tuple[int, ...]:
        """The rows of each matrix."""
        return tuple(n for n in (self.n, self.n2, self.n3) if n)

    @property
    def row_blocks(self) -> int:
        """Blocks along the rows of all matrices."""
        return sum(-(-n // self.block_rows) for n in self.matrices)

    @property
    def _apart(self) -> tuple[Self, ...]:
        """A kernel for each matrix."""
        return tuple(replace(self, n=n, n2=0, n3=0) for n in self.matrices)

    def signature(self) -> Signature:
        arguments = super().signature()
        for number, other in enumerate(self._apart[1:], 2):
            arguments |= {f"{name}{number}": argument for name, argument in other.signature().items() if name in OF_MATRIX}
        return arguments

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        if not self.n2:
            return super().reference(**arguments)
        return self._together([one.reference(**own) for one, own in self._arguments_apart(arguments)])

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        if not self.n2:
            return super().tolerance(**arguments)
        return self._together([one.tolerance(**own) for one, own in self._arguments_apart(arguments)])

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return self._together([one.inputs(rng) for one in self._apart]) if self.n2 else super().inputs(rng)

    def work(self) -> Work:
        if not self.n2:
            return super().work()
        flops, read = (sum(getattr(one.work(), what) for one in self._apart) for what in ("flops", "bytes"))
        return Work(flops, read - (len(self.matrices) - 1) * self._activation_bytes)

    @property
    def _activation_bytes(self) -> int:
        """Of what all matrices are multiplied by."""
        inputs = ((name, one) for name, one in self._apart[0].signature().items() if name not in OF_MATRIX)
        return sum(one.nbytes for _, one in inputs if isinstance(one, Array) and one.direction == "in")

    def _arguments_apart(self, arguments: Mapping[str, Any]) -> Iterator[tuple[Self, dict[str, Any]]]:
        """The kernel of each matrix, and what it takes of these arguments."""
        for number, one in enumerate(self._apart, 1):
            own = {name: arguments[name if number == 1 else f"{name}{number}"] for name in OF_MATRIX}
            yield one, {**arguments, **own}

    def _together(self, of_each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What there is for each matrix as what there is for a kernel of all; activations are the first's."""
        together = dict(of_each[0])
        for number, one in enumerate(of_each[1:], 2):
            together |= {f"{name}{number}": one[name] for name in OF_MATRIX if name in one}
        for name in self.scratch:
            together[name] = np.concatenate([one[name] for one in of_each])
        return together


def further(others: Sequence[KernelType], alike: Callable[[Any], bool]) -> tuple[int, int] | None:
    """n2 and n3 of the launch for the matrices of one or two other kernels, too; None unless they are so many and all alike."""
    if not 1 <= len(others) <= 2 or not all(map(alike, others)):
        return None
    n2, n3 = (*(one.parameters()["n"] for one in others), 0)[:2]
    return n2, n3


class RowBlocks(Protocol):
    """Matrices of which each block of threads has `block_rows` rows of one."""

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block of threads."""

    @property
    def matrices(self) -> tuple[int, ...]:
        """The rows of each matrix."""


class BlockMatrix(Protocol):
    """The matrix that a block of threads has rows of."""

    n: Index
    """Its rows."""
    whole: bool
    """Whether no block has fewer rows than others."""
    first_row: Value
    """The first row of the block."""

    def array(self, name: str) -> GlobalArray:
        """The matrix's array that the first one's is the argument of this name of, flat."""
        ...


class LastMatrix:
    """The matrix whose arguments have this number behind their names, of whose rows a block has `block_rows`; block: its number
    among those that have rows of it."""

    def __init__(self, k: KernelBuilder, *, number: int, n: int, block: Value, block_rows: int) -> None:
        self._k, self._number = k, number
        self.n: Index = n
        self.whole = n % block_rows == 0
        self.first_row: Value = block * block_rows

    def array(self, name: str) -> GlobalArray:
        """See BlockMatrix."""
        return flat(self._k, f"{name}{self._number}")


def flat(k: KernelBuilder, name: str) -> GlobalArray:
    """The argument of this name from its first element on."""
    array: GlobalArray = getattr(k.arg, name)
    return array.at(*[0] * len(array.shape))


class MatrixOfBlock:
    """The matrix that the block of this number along the rows of all has rows of: its rows `n`, and the first of them that is
    the block's. Its arrays are chosen with it where they are named in `at_once`, others when they are asked for, so that
    nothing of them is kept until then. Nothing is chosen where there is one matrix."""

    def __init__(self, kernel: RowBlocks, k: KernelBuilder, block: Value, at_once: Sequence[str] = ()) -> None:
        self.kernel, self.k, self._block = kernel, k, block
        self.whole = all(n % kernel.block_rows == 0 for n in kernel.matrices)
        self._arrays = {name: flat(k, name) for name in at_once}
        self.n: Index = kernel.matrices[0]
        number = block
        for matrix, before in self._others():
            mine = block >= before
            self._take(mine, matrix, at_once)
            self.n = k.select(mine, k.u32(kernel.matrices[matrix - 1]), self.n)
            number = k.select(mine, block - before, number)
        self.first_row: Value = number * kernel.block_rows

    def array(self, name: str) -> GlobalArray:
        """See BlockMatrix."""
        if name not in self._arrays:
            self._arrays[name] = flat(self.k, name)
            for matrix, before in self._others():
                self._take(self._block >= before, matrix, (name,))
        return self._arrays[name]

    def _others(self) -> Iterator[tuple[int, int]]:
        """The numbers of the second and the third matrix, and the blocks before theirs."""
        before = 0
        for matrix, n in enumerate(self.kernel.matrices[:-1], 2):
            before += -(-n // self.kernel.block_rows)
            yield matrix, before

    def _take(self, mine: Value, matrix: int, names: Sequence[str]) -> None:
        """These arrays of this matrix instead, where it is the block's."""
        for name, array in [(name, flat(self.k, f"{name}{matrix}")) for name in names]:
            before = self._arrays[name]
            self._arrays[name] = replace(before, base=self.k.select(mine, array.base, before.base))
