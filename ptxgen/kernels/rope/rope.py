"""Rotary position embedding in place, by a table of cosines and sines (see table.py): of one token's heads, and of several
tokens' in one launch, each at a position of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.kernels.rope.table import rope_table
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32, U32

THREADS = 128


Pair = tuple[Value, Value]
"""What is turned together."""


def load_pair(k: KernelBuilder, x: GlobalArray, distance: int) -> Pair:
    """x[0] and x[distance]. At distance 1 x is aligned to the pair."""
    if distance == 1:
        first, second = k.load_vector(x[0], 2)
        return first, second
    return k.load(x[0]), k.load(x[distance])


def turned(k: KernelBuilder, pair: Pair, cosine: Value, sine: Value) -> Pair:
    """The pair turned by an angle. Two roundings of each value: of a product and of the result."""
    first, second = pair
    return k.fma(first, cosine, -(second * sine)), k.fma(first, sine, second * cosine)


def store_pair(k: KernelBuilder, x: GlobalArray | SharedPart, distance: int, pair: Pair) -> None:
    """x[0] and x[distance] become the pair. At distance 1 x is aligned to it."""
    if distance == 1:
        k.store(x[0], pair)
    else:
        k.store(x[0], pair[0])
        k.store(x[distance], pair[1])


def load_pairs(k: KernelBuilder, x: GlobalArray, distance: int, count: int) -> list[Pair]:
    """`count` pairs, 1 or 2, side by side: neighbours from x[0] on if the distance is 1, else (x[i], x[i + distance]) for
    i < count. x is aligned to what is loaded at once."""
    if count == 1:
        return [load_pair(k, x, distance)]
    if distance == 1:
        return neighbours(k.load_vector(x[0], 2 * count))
    return list(zip(k.load_vector(x[0], count), k.load_vector(x[distance], count), strict=True))


def store_pairs(k: KernelBuilder, x: GlobalArray | SharedPart, distance: int, pairs: Sequence[Pair]) -> None:
    """Store pairs where `load_pairs` has them."""
    if len(pairs) == 1:
        store_pair(k, x, distance, pairs[0])
    elif distance == 1:
        k.store(x[0], [value for pair in pairs for value in pair])
    else:
        for at, values in zip((0, distance), zip(*pairs, strict=True), strict=True):
            k.store(x[at], values)


def neighbours(values: Sequence[Value]) -> list[Pair]:
    """The values by twos."""
    return list(zip(values[::2], values[1::2], strict=True))


@register(neox=(False, True), indirect=(False, True), m=[None])
@register(neox=(False, True), indirect=[True], m=[GIVEN])
@dataclass(frozen=True)
class Rope(KernelType):
    """Rotate the first rotary_dim values of each head by the angles of its token's position, in place.

    x: f32[heads, head_dim], or f32[m, heads, head_dim] of m tokens; table: f32[max_len, rotary_dim / 2, 2] of cosine and sine.
    Pair i is (x[2i], x[2i + 1]), or with `neox` (x[i], x[i + rotary_dim / 2]). position: u32 scalar below max_len, or with
    `indirect` a buffer u32[1] that holds it; of m tokens positions: u32[m], one of each. A token at max_len or beyond is left
    as it is, and a token has the same bits whatever m is. rotary_dim 0 means head_dim.
    """

    family: ClassVar[str] = "rope"
    neox: bool = field(metadata=HIDDEN)
    indirect: bool = field(metadata=HIDDEN)
    heads: int
    head_dim: int
    max_len: int
    rotary_dim: int = 0
    m: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.m is not None:
            require(self, "m", high=MOST_ROWS)
            object.__setattr__(self, "indirect", True)
        require(self, "heads", "max_len")
        require(self, "head_dim", low=2, multiple=2)
        if self.rotary_dim == 0:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        require(self, "rotary_dim", low=2, multiple=2)
        if self.rotary_dim > self.head_dim:
            raise ArgumentError(f"{self.name}: rotary_dim must be at most head_dim ({self.head_dim}), got {self.rotary_dim}")

    @property
    def name(self) -> str:
        style = f"rope{'_neox' if self.neox else ''}"
        if self.m is not None:
            return f"batched_{style}"
        return f"{style}_indirect" if self.indirect else style

    @property
    def half(self) -> int:
        """Pairs of a head."""
        return self.rotary_dim // 2

    @property
    def shape(self) -> tuple[int, ...]:
        """Of x."""
        tokens = () if self.m is None else (self.m,)
        return *tokens, self.heads, self.head_dim

    def signature(self) -> Signature:
        x, table = update(F32, *self.shape), read(F32, self.max_len, self.half, 2)
        if self.m is None:
            return {"x": x, "table": table, "position": position_argument(self.indirect, 0, self.max_len - 1)}
        return {"x": x, "table": table, "positions": read(U32, self.m, align=4)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.heads * self.half // THREADS), 1 if self.m is None else self.m), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        if self.m is None:
            self._turn(k, k.arg.x.at(0, 0), position_value(k, "position", self.indirect))
        else:
            token = k.ctaid.y
            self._turn(k, k.arg.x.at(token, 0, 0), k.load(k.arg.positions[token]))

    def _turn(self, k: KernelBuilder, x: GlobalArray, position: Value) -> None:
        """Turn the heads of one token, which start at x; a thread takes a pair."""
        pair = k.ctaid.x * THREADS + k.tid.x
        with k.when((pair < self.heads * self.half) & (position < self.max_len)):
            head, i = pair // self.half, pair % self.half
            cosine, sine = k.load_vector(k.arg.table[position, i, 0], 2)
            row, distance = x.at(head * self.head_dim + (i if self.neox else i * 2)), self.half if self.neox else 1
            store_pair(k, row, distance, turned(k, load_pair(k, row, distance), cosine, sine))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x = arguments["x"].astype(np.float64)
        positions = np.asarray(arguments["position" if self.m is None else "positions"]).reshape(-1)
        for token, position in zip(x.reshape(-1, self.heads, self.head_dim), positions, strict=True):
            if position < self.max_len:
                cosine, sine = arguments["table"][position].astype(np.float64).T
                first, second = self._pairs(token)
                first[:], second[:] = first * cosine - second * sine, first * sine + second * cosine
        return {"x": x}

    def _pairs(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if self.neox:
            return x[..., : self.half], x[..., self.half : self.rotary_dim]
        return x[..., 0 : self.rotary_dim : 2], x[..., 1 : self.rotary_dim : 2]

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Two roundings of one unit (2^-24), of a product and of the result, each at most |first| + |second|; the values that
        are not turned are exact."""
        bound = np.zeros(self.shape)
        first, second = self._pairs(np.abs(arguments["x"].astype(np.float64)))
        for part in self._pairs(bound):
            part[:] = (first + second) * 2 * UNIT + 2.0**-148
        return {"x": bound}

    def work(self) -> Work:
        tokens, pairs = 1 if self.m is None else self.m, self.heads * self.half
        positions = 0 if self.m is None else U32.bytes * self.m
        return Work(flops=tokens * 6 * pairs, bytes=tokens * F32.bytes * (4 * pairs + 2 * self.half) + positions)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        fixed.pop("m", None)
        yield cls(**fixed, heads=9, head_dim=64, max_len=100)
        yield cls(**fixed, heads=32, head_dim=128, max_len=33)
        yield cls(**fixed, heads=2, head_dim=64, max_len=7, rotary_dim=32)
        yield cls(**fixed, heads=3, head_dim=96, max_len=1)
        yield cls(**fixed, heads=1, head_dim=256, max_len=5)
        yield cls(**fixed, heads=9, head_dim=64, max_len=100, m=3)
        yield cls(**fixed, heads=8, head_dim=128, max_len=33, m=8)
        yield cls(**fixed, heads=2, head_dim=64, max_len=7, rotary_dim=32, m=5)
        yield cls(**fixed, heads=3, head_dim=96, max_len=1, m=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        if self.m is not None:
            x, position = self._x(rng), {"positions": rng.integers(self.max_len, size=self.m, dtype=np.uint32)}
        else:
            drawn = rng.integers(self.max_len, size=1, dtype=np.uint32)
            x, position = self._x(rng), {"position": drawn if self.indirect else drawn[0]}
        return {"x": x, "table": rope_table(self.max_len, self.rotary_dim, 1e5), **position}

    def _x(self, rng: np.random.Generator) -> NDArray[np.float32]:
        return rng.normal(0.0, 1.0, self.shape).astype(np.float32)
