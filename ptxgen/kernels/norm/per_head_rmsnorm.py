"""RMSNorm of each head by itself (the QK norm of qwen3): one warp a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl import mathlib
from ptxgen.dsl.arguments import Scalar, Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import with_outlier
from ptxgen.kernels.norm.rmsnorm import rms_bound, rms_normalised
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require, require_head_dim
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32


def normalised(k: KernelBuilder, x: GlobalArray, gamma: GlobalArray, head_dim: int) -> Iterator[Value]:
    """The lane's values of a head, every 32nd from the first of x on, times the same of gamma and by the root of the head's
    mean square plus the argument eps. The whole warp must come here."""
    return normed(k, head_values(k, x, head_dim), head_values(k, gamma, head_dim), head_dim)


def head_values(k: KernelBuilder, array: GlobalArray, head_dim: int) -> list[Value]:
    """The lane's values of a head, every 32nd from the first of the array on, zeros past the end of the head."""
    return [_element(k, array, place, head_dim) for place in range(0, head_dim, WARP_SIZE)]


def _element(k: KernelBuilder, array: GlobalArray, place: int, head_dim: int) -> Value:
    """The lane's value at a place, 0 past the end of the head."""
    if place + WARP_SIZE <= head_dim:
        return k.load(array[place])
    value = k.variable(0.0, F32)
    k.load_where(k.lane < head_dim - place, array[place], [value])
    return value


def normed(k: KernelBuilder, values: list[Value], gammas: list[Value], head_dim: int) -> Iterator[Value]:
    """The same of values and gammas that were loaded before, zeros past the end of the head."""
    total = k.f32(0.0)
    for value in values:
        total @= k.fma(value, value, total)
    scale = mathlib.rsqrt(k, k.warp_sum(total) / float(head_dim) + k.arg.eps)
    for value, factor in zip(values, gammas, strict=True):
        yield value * scale * factor


@register
@dataclass(frozen=True)
class PerHeadRmsNorm(KernelType):
    """x = gamma * x / sqrt(mean(x^2) + eps) for each head, in place.

    x: f32[heads, head_dim], of one token or, one after the other, of several; gamma: f32[head_dim], the same for every head;
    eps: f32 scalar. head_dim: 32, a multiple of 8 from 40 to 256, or 512.
    """

    family: ClassVar[str] = "norm"
    name = "per_head_rmsnorm"
    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        require(self, "heads")
        require_head_dim(self, self.head_dim)

    def signature(self) -> Signature:
        return {
            "x": update(F32, self.heads, self.head_dim),
            "gamma": read(F32, self.head_dim),
            "eps": Scalar(F32, low=0.0),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.heads, block=WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        x = k.arg.x.at(k.ctaid.x, k.lane)
        for number, value in enumerate(normalised(k, x, k.arg.gamma.at(k.lane), self.head_dim)):
            rest = self.head_dim - number * WARP_SIZE
            with nullcontext() if rest >= WARP_SIZE else k.when(k.lane < rest):
                k.store(x[number * WARP_SIZE], value)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x, gamma = arguments["x"].astype(np.float64), arguments["gamma"].astype(np.float64)
        return {"x": rms_normalised(x, gamma, float(arguments["eps"]))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"x": rms_bound(self.reference(**arguments)["x"], chain=-(-self.head_dim // WARP_SIZE), tree=5)}

    def work(self) -> Work:
        values = self.heads * self.head_dim
        return Work(flops=4 * values, bytes=F32.bytes * (2 * values + self.head_dim))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(heads=16, head_dim=128)
        yield cls(heads=8, head_dim=64)
        yield cls(heads=1, head_dim=256)
        yield cls(heads=5, head_dim=96)
        yield cls(heads=3, head_dim=32)
        yield cls(heads=3, head_dim=72)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": with_outlier(rng, self.heads, self.head_dim),
            "gamma": rng.normal(1.0, 0.3, self.head_dim).astype(np.float32),
            "eps": np.float32(1e-6),
        }
