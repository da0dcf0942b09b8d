"""The forms in which kernels write results for the products that read them: int8 planes and f16 split. A form is a part of a
kernel: its arguments, reference, bound and work; `write_planes` and `write_f16_split` emit it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import numpy_dtype
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import HalfForm, KernelType, Work
from ptxgen.errors import ArgumentError
from ptxgen.kernels.quantize import f16_split, int8_planes
from ptxgen.kernels.quantize.f16_split import TILE
from ptxgen.kernels.quantize.f16_split_bounds import f16_split_bounds
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST
from ptxgen.kernels.quantize.pack_f16 import RUN
from ptxgen.kernels.quantize.plane_bounds import plane_bounds
from ptxgen.kernels.shape import MOST_ROWS, require


class OutputForm(ABC):
    """What stands for f32[rows, n] in a form."""

    suffix: ClassVar[str]
    """Of the names of kernels that write it."""
    least_sm: ClassVar[int]
    multiple: ClassVar[int]
    """What n is a multiple of."""
    most_rows: ClassVar[int]

    @abstractmethod
    def arrays(self, rows: int, n: int) -> dict[str, Array]:
        """The arguments by name."""

    @abstractmethod
    def reference(self, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """What the arguments hold for x: f32[rows, n]."""

    @abstractmethod
    def bounds(self, x: NDArray[np.float64], bound: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """How far the arguments may be from `reference(x)` where the values are within `bound` of x."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Operations a value."""

    def unwritten(self, rows: int, n: int) -> dict[str, NDArray[Any]]:
        """The arguments before a kernel wrote them: what they hold is none of its results. For inputs of tests."""
        return {name: np.full(array.shape, 99, numpy_dtype(array.dtype)) for name, array in self.arrays(rows, n).items()}

    def work(self, rows: int, n: int) -> Work:
        """That of making it from values in registers."""
        written = sum(array.nbytes for array in self.arrays(rows, n).values())
        return Work(flops=self.flops * rows * n, bytes=written)


@dataclass(frozen=True)
class Int8Planes(OutputForm):
    """`count` int8 planes with a scale and an exact sum for every 32 values (int8_planes.py)."""

    count: int
    suffix = "_digits"
    least_sm = 75
    multiple = BLOCK
    most_rows = MOST_ROWS
    flops = 2  # a product and a rounding

    def arrays(self, rows: int, n: int) -> dict[str, Array]:
        return int8_planes.arrays(rows, self.count, n, "out")

    def reference(self, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return int8_planes.quantize(x, self.count)._asdict()

    def bounds(self, x: NDArray[np.float64], bound: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        return plane_bounds(x, bound, self.count)


@dataclass(frozen=True)
class F16Split(OutputForm):
    """One or two f16 for each value, in the order in which tensor cores read them, with a scale for every 256 values
    (f16_split.py)."""

    form: HalfForm
    suffix = "_halves"
    least_sm = 80
    multiple = RUN
    most_rows = MOST_ROWS // TILE * TILE

    def arrays(self, rows: int, n: int) -> dict[str, Array]:
        return f16_split.arrays(rows, n, self.form, "out")

    def reference(self, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return f16_split.pack(x, self.form)._asdict()

    def bounds(self, x: NDArray[np.float64], bound: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        return f16_split_bounds(x, bound, self.form)

    @property
    def flops(self) -> int:
        """A product and, but for the last part, a subtraction, and the addition to a sum."""
        return 1 + self.form.parts


class HasForm(Protocol):
    """A kernel whose fields say how many tokens it has and in which form it writes them; None: not in this form."""

    @property
    def m(self) -> int | None:
        """The tokens; None where arrays have no dimension for them."""

    @property
    def digits(self) -> int | None:
        """The number of int8 planes."""

    @property
    def parts(self) -> int | None:
        """That of a HalfForm."""

    @property
    def lane_run(self) -> int | None:
        """That of a HalfForm."""


def form_name(operation: str, kernel: HasForm) -> str:
    """The registered name of an operation in the kernel's form. It asks which fields are None, and nothing else."""
    form = Int8Planes if kernel.digits is not None else F16Split if kernel.parts is not None else None
    return f"{'batched_' if kernel.m is not None else ''}{operation}{form.suffix if form else ''}"


def form_of(kernel: HasForm) -> OutputForm | None:
    """The form in which the kernel writes its results, None for f32 alone. ArgumentError if it has two, or half of one."""
    split = (kernel.parts, kernel.lane_run)
    if kernel.digits is None:
        return None if split == (None, None) else F16Split(HalfForm(*split))  # type: ignore[arg-type] # it checks them
    if split != (None, None):
        raise ArgumentError(f"results are written as int8 planes or as f16 split, got {kernel.digits=}, and {split=}")
    return Int8Planes(kernel.digits)


def require_form(kernel: HasForm, size: str, high: int | None = None) -> None:
    """Raise ArgumentError unless the kernel's fields make a form, and the field `size`, the values of a row, and m fit it."""
    assert isinstance(kernel, KernelType)
    form = form_of(kernel)
    require(kernel, size, high=high, multiple=form.multiple if form else 1)
    if kernel.digits is not None:
        require(kernel, "digits", high=max(LARGEST))
    if kernel.m is not None or isinstance(form, F16Split):
        require(kernel, "m", high=form.most_rows if form else None)
