"""Several matrices with the same activations in one launch: what a GEMM takes, gives and costs for all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.kernel_type import Work
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.segments import MatrixOfBlock, further
from ptxgen.kernels.shape import require

__all__ = ["Joined", "MatrixOfBlock", "further"]

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
