"""The base of kernels that compute each element from the elements at the same place: activations, sums, products. One thread an
element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.shape import require
from ptxgen.types import F32

THREADS = 256


@dataclass(frozen=True)
class Elementwise(KernelType):
    """`result[i]` from `sources[j][i]` for i < n, all f32[n], or f32[m, n]. `result` may be one of the sources: then it is
    changed in place.

    A subclass names the arrays and gives `compute`, its float64 twin `exact` and the rounding bound of the two."""

    family: ClassVar[str] = "activation"
    result: ClassVar[str]
    sources: ClassVar[tuple[str, ...]]
    n: int

    def __post_init__(self) -> None:
        require(self, "n", *(["m"] if self.m is not None else []))

    @property
    def m(self) -> int | None:
        """The rows of every array, None where arrays have no dimension for them. A subclass that has rows makes it a field."""
        return None

    @property
    @abstractmethod
    def operation(self) -> str:
        """The name without m. A plain class attribute where the class is one operation."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Operations an element; an exponential or a division counts as one. A class attribute likewise."""

    @property
    def name(self) -> str:
        return self.operation if self.m is None else f"batched_{self.operation}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array."""
        return (self.n,) if self.m is None else (self.m, self.n)

    @property
    def size(self) -> int:
        """Elements of an array."""
        return prod(self.shape)

    @abstractmethod
    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        """Write what makes an element of `result` from those of `sources`, in their order."""

    @abstractmethod
    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What `compute` computes, in float64."""

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The largest rounding error of `compute`: of one operation, unless a subclass has more."""
        return np.abs(self.exact(*values)) * UNIT

    def signature(self) -> Signature:
        inputs: Signature = {name: read(F32, *self.shape) for name in self.sources}
        if self.result in inputs:
            return {**inputs, self.result: update(F32, *self.shape)}
        return {self.result: write(F32, *self.shape), **inputs}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.size // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.size):
            values = [k.load(_flat(k, name)[i]) for name in self.sources]
            k.store(_flat(k, self.result)[i], self.compute(k, *values))

    def _doubles(self, arguments: Mapping[str, Any]) -> list[NDArray[np.float64]]:
        return [arguments[name].astype(np.float64) for name in self.sources]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {self.result: self.exact(*self._doubles(arguments))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {self.result: self.bound(*self._doubles(arguments)) + 2.0**-148}

    def work(self) -> Work:
        return Work(flops=self.flops * self.size, bytes=F32.bytes * self.size * (len(self.sources) + 1))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n in (1536, 1, 255, 4097):
            yield cls(n=n)
        if any(one.name == "m" for one in fields(cls)):
            for shape in ({"n": 1536, "m": 3}, {"n": 1, "m": 1}, {"n": 255, "m": 2}, {"n": 37, "m": 7}):
                yield cls(**shape)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Values of every size that an activation has, the far tails included."""
        return {
            name: (rng.normal(0.0, 1.0, self.shape) * 10.0 ** rng.uniform(-3, 2, self.shape)).astype(np.float32)
            for name in dict.fromkeys((self.result, *self.sources))
        }


def _flat(k: KernelBuilder, name: str) -> GlobalArray:
    """The argument as an array of one dimension."""
    array: GlobalArray = getattr(k.arg, name)
    return array.at(*[0] * len(array.shape))
