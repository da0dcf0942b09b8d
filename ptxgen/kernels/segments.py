"""Segments: several matrices that one launch multiplies by the same activations. Blocks of threads take `block_rows` rows of
one matrix each; those of the second matrix follow those of the first. Here is which matrix a block of threads has rows of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value


class RowSegments(Protocol):
    """What says how many rows each matrix has."""

    @property
    def matrices(self) -> tuple[int, ...]:
        """The rows of each matrix."""
        ...

    @property
    def block_rows(self) -> int:
        """Rows of weights of a block of threads."""
        ...


def further(others: Sequence[KernelType], alike: Callable[[Any], bool]) -> tuple[int, int] | None:
    """n2 and n3 of the launch for the matrices of one or two other kernels, too; None unless they are so many and all alike."""
    if not 1 <= len(others) <= 2 or not all(map(alike, others)):
        return None
    n2, n3 = (*(one.parameters()["n"] for one in others), 0)[:2]
    return n2, n3


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

    def __init__(self, of: RowSegments, k: KernelBuilder, block: Value, at_once: Sequence[str] = ()) -> None:
        self.of, self.k, self._block = of, k, block
        self.whole = all(n % of.block_rows == 0 for n in of.matrices)
        self._arrays = {name: flat(k, name) for name in at_once}
        self.n: Index = of.matrices[0]
        number = block
        for matrix, before in self._others():
            mine = block >= before
            self._take(mine, matrix, at_once)
            self.n = k.select(mine, k.u32(of.matrices[matrix - 1]), self.n)
            number = k.select(mine, block - before, number)
        self.first_row: Value = number * of.block_rows

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
        for matrix, n in enumerate(self.of.matrices[:-1], 2):
            before += -(-n // self.of.block_rows)
            yield matrix, before

    def _take(self, mine: Value, matrix: int, names: Sequence[str]) -> None:
        """These arrays of this matrix instead, where it is the block's."""
        for name, array in [(name, flat(self.k, f"{name}{matrix}")) for name in names]:
            before = self._arrays[name]
            self._arrays[name] = replace(before, base=self.k.select(mine, array.base, before.base))
