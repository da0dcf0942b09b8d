"""LayerNorm of each head by itself, with a row of weights for each head of a token (the QK norm of Command R+): one warp a
head."""

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
from ptxgen.kernels.accuracy import UNIT, gamma, with_outlier
from ptxgen.kernels.norm.per_head_rmsnorm import head_values
from ptxgen.kernels.norm.rmsnorm import root_units
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require, require_head_dim
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

TREE = 5
"""Additions that the sum of a lane goes through in that of the warp."""


@register
@dataclass(frozen=True)
class PerHeadLayerNorm(KernelType):
    """x = gamma * (x - mean(x)) / sqrt(var(x) + eps) for each head, in place.

    x: f32[m * heads, head_dim], the heads of m tokens one after the other; gamma: f32[heads, head_dim]; eps: f32 scalar. var is
    the mean square of the differences. head_dim as in per_head_rmsnorm.
    """

    family: ClassVar[str] = "norm"
    name = "per_head_layernorm"
    heads: int
    head_dim: int
    m: int = 1

    def __post_init__(self) -> None:
        require(self, "heads", "m")
        require_head_dim(self, self.head_dim)

    def signature(self) -> Signature:
        return {
            "x": update(F32, self.m * self.heads, self.head_dim),
            "gamma": read(F32, self.heads, self.head_dim),
            "eps": Scalar(F32, low=0.0),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.m * self.heads, block=WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        x = k.arg.x.at(k.ctaid.x, k.lane)
        values = head_values(k, x, self.head_dim)
        gammas = head_values(k, k.arg.gamma.at(k.ctaid.x % self.heads, k.lane), self.head_dim)
        total, squares = k.f32(0.0), k.f32(0.0)
        for value in values:
            total @= total + value
        mean = k.warp_sum(total) / float(self.head_dim)
        differences = [value - mean for value in values]
        for number, difference in enumerate(differences):
            with self._inside(k, number):
                squares @= k.fma(difference, difference, squares)
        scale = mathlib.rsqrt(k, k.warp_sum(squares) / float(self.head_dim) + k.arg.eps)
        for number, (difference, factor) in enumerate(zip(differences, gammas, strict=True)):
            with self._inside(k, number):
                k.store(x[number * WARP_SIZE], difference * scale * factor)

    def _inside(self, k: KernelBuilder, number: int) -> Any:
        """In the block, the lane's value of this number is one of the head."""
        rest = self.head_dim - number * WARP_SIZE
        return nullcontext() if rest >= WARP_SIZE else k.when(k.lane < rest)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        difference, root, gammas = self._exact(arguments)
        return {"x": difference * root * gammas}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """As that of layernorm: the mean is off by `shift` at most, which all differences of a head share, and each is rounded:
        `off`. The shift adds its square to the variance; the rounded differences add two units to each of its terms, of which
        the root halves both. Then come two products."""
        difference, root, gammas = self._exact(arguments)
        chain = -(-self.head_dim // WARP_SIZE)
        shift = gamma(chain + TREE + 1) * np.abs(arguments["x"].astype("f8")).mean(axis=-1, keepdims=True)
        off = shift + UNIT * (np.abs(difference) + shift)
        relative = (root_units(chain=chain, tree=TREE) + 1 + 2) * UNIT + (shift * root) ** 2 / 2
        bound = np.abs(difference * root * gammas) * relative + np.abs(gammas) * root * off * (1 + relative) + 2.0**-148
        return {"x": bound}

    def _exact(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.float64], ...]:
        """x - mean, 1 / sqrt(var + eps) and the weights of each head, in float64."""
        x = arguments["x"].astype(np.float64)
        difference = x - x.mean(axis=-1, keepdims=True)
        root = 1 / np.sqrt((difference**2).mean(axis=-1, keepdims=True) + float(arguments["eps"]))
        return difference, root, np.tile(arguments["gamma"].astype(np.float64), (self.m, 1))

    def work(self) -> Work:
        values = self.m * self.heads * self.head_dim
        return Work(flops=6 * values, bytes=F32.bytes * (2 * values + self.heads * self.head_dim))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(heads=4, head_dim=128)
        yield cls(heads=3, head_dim=72, m=2)
        yield cls(heads=1, head_dim=32, m=3)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """With a mean that is not small beside the deviation."""
        return {
            "x": with_outlier(rng, self.m * self.heads, self.head_dim) + np.float32(2.5),
            "gamma": rng.normal(1.0, 0.3, (self.heads, self.head_dim)).astype(np.float32),
            "eps": np.float32(1e-5),
        }
