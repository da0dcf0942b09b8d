"""rope_scatter for architectures that normalise each head of the queries and the keys first (qwen3): one warp a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import with_outlier
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.norm.per_head_rmsnorm import normalised
from ptxgen.kernels.norm.rmsnorm import rms_bound, rms_normalised
from ptxgen.kernels.position import position_value
from ptxgen.kernels.registry import register
from ptxgen.kernels.rope.rope import turned
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

NORMED = ("q", "k")
LARGEST_HEAD = 256  # values; a lane holds 8 of them and their gammas


@register(neox=(True,), bias=(False,))
@dataclass(frozen=True)
class NormRopeScatter(RopeScatter):
    """Normalise and rotate the queries and keys of a token, in place, and write its keys and values into the cache.

    q: f32[heads, head_dim]; k, v: f32[kv_heads, head_dim]; q_gamma, k_gamma: f32[head_dim] and eps: f32 scalar, as the gamma
    and eps of per_head_rmsnorm for each head of q and of k; table, k_cache, v_cache and position as in rope_scatter, in the
    style of neox and without a bias. All of a head is rotated; head_dim is 64, 128, 192 or 256, so that a lane has both values
    of a pair. The bits are those of per_head_rmsnorm for q and for k and of rope_scatter, one after the other. A position of
    max_len or more changes nothing at all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias or not self.suits(neox=self.neox, head_dim=self.head_dim, rotary_dim=self.rotary_dim):
            raise ArgumentError(
                f"{self.name} rotates all of a head of 64, 128, 192 or {LARGEST_HEAD} values in the style of neox and adds no "
                f"bias, got {self.parameters()}"
            )

    @property
    def name(self) -> str:
        return "norm_rope_neox_scatter_indirect"

    @staticmethod
    def suits(*, neox: bool, head_dim: int, rotary_dim: int) -> bool:
        """Whether there is one for heads of this kind."""
        return neox and rotary_dim == head_dim and head_dim <= LARGEST_HEAD and head_dim % (2 * WARP_SIZE) == 0

    def signature(self) -> Signature:
        gammas: Signature = {f"{name}_gamma": read(F32, self.head_dim) for name in NORMED}
        return {**super().signature(), **gammas, "eps": Scalar(F32, low=0.0)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=sum(self.tokens.values()), block=WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        """A block takes a head: those of q, then of k, then of v."""
        position, head = position_value(k, "position", True), k.ctaid.x
        with k.when(position < self.max_len):
            with k.when(head < self.heads):
                self._turn(k, "q", head, position)
            with k.otherwise():
                with k.when(head < self.heads + self.kv_heads):
                    self._turn(k, "k", head - self.heads, position)
                with k.otherwise():
                    number = head - (self.heads + self.kv_heads)
                    x, cache = k.arg.v.at(number, k.lane), k.arg.v_cache.at(number, position, k.lane)
                    values = [k.load(x[place]) for place in range(0, self.head_dim, WARP_SIZE)]
                    for at, value in enumerate(values):
                        k.store(cache[at * WARP_SIZE], value)

    def _turn(self, k: KernelBuilder, name: str, head: Value, position: Value) -> None:
        """A head of q or k; of k into the cache, too. A lane has every 32nd value, so both of each of its pairs."""
        x, half = getattr(k.arg, name).at(head, k.lane), self.head_dim // 2
        angles = [k.load_vector(k.arg.table[position, k.lane + i, 0], 2) for i in range(0, half, WARP_SIZE)]
        values = list(normalised(k, x, getattr(k.arg, f"{name}_gamma").at(k.lane), self.head_dim))
        for number, (cosine, sine) in enumerate(angles):
            pair = turned(k, (values[number], values[number + len(angles)]), cosine, sine)
            for place, value in zip((number * WARP_SIZE, number * WARP_SIZE + half), pair, strict=True):
                k.store(x[place], value)
                if name == "k":
                    k.store(k.arg.k_cache.at(head, position, k.lane)[place], value)

    def exact(self, arguments: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """As in rope_scatter. A turn gives each value of a pair at most the sum of what the norm lets both be off by, and its
        own roundings are those of values that much larger: a sixteenth is plenty for the second order."""
        if int(arguments["position"][0]) >= self.max_len:
            return super().exact(arguments)
        eps, off, normed = float(arguments["eps"]), {}, dict(arguments)
        for name in NORMED:
            gamma = arguments[f"{name}_gamma"].astype(np.float64)
            normed[name] = rms_normalised(arguments[name].astype(np.float64), gamma, eps)
            bound = rms_bound(normed[name], chain=self.head_dim // WARP_SIZE, tree=5)
            off[name] = np.tile(bound[:, : self.head_dim // 2] + bound[:, self.head_dim // 2 :], 2)
        values, bounds = super().exact(normed)
        return values, bounds | {name: bounds[name] * 1.0625 + off[name] for name in NORMED}

    def work(self) -> Work:
        turn, values = super().work(), (self.heads + self.kv_heads) * self.head_dim
        return Work(flops=turn.flops + 4 * values, bytes=turn.bytes + F32.bytes * len(NORMED) * self.head_dim)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=16, kv_heads=8, head_dim=128, max_len=100)
        yield cls(**fixed, heads=3, kv_heads=1, head_dim=64, max_len=1)
        yield cls(**fixed, heads=2, kv_heads=2, head_dim=192, max_len=3)
        yield cls(**fixed, heads=5, kv_heads=1, head_dim=256, max_len=7)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        inputs = super().inputs(rng) | {name: with_outlier(rng, heads, self.head_dim) for name, heads in self.tokens.items()}
        gammas = {f"{name}_gamma": rng.normal(1.0, 0.3, self.head_dim).astype(np.float32) for name in NORMED}
        return {**inputs, **gammas, "eps": np.float32(1e-6)}
