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
from ptxgen.kernels.registry import register
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


@register(neox=(False, True), indirect=(False, True))
@dataclass(frozen=True)
class Rope(KernelType):
    """Rotate the first rotary_dim values of each head by the angles of a position, in place.

    x: f32[heads, head_dim]; table: f32[max_len, rotary_dim / 2, 2] of cosine and sine. Pair i is (x[2i], x[2i + 1]), or with
    `neox` (x[i], x[i + rotary_dim / 2]). position: u32 scalar below max_len, or with `indirect` a buffer u32[1] that holds it;
    a position of max_len or more leaves x as it is. rotary_dim 0 means head_dim.
    """

    family: ClassVar[str] = "rope"
    neox: bool = field(metadata=HIDDEN)
    indirect: bool = field(metadata=HIDDEN)
    heads: int
    head_dim: int
    max_len: int
    rotary_dim: int = 0

    def __post_init__(self) -> None:
        require(self, "heads", "max_len")
        require(self, "head_dim", low=2, multiple=2)
        if self.rotary_dim == 0:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        require(self, "rotary_dim", low=2, multiple=2)
        if self.rotary_dim > self.head_dim:
            raise ArgumentError(f"{self.name}: rotary_dim must be at most head_dim ({self.head_dim}), got {self.rotary_dim}")

    @property
    def name(self) -> str:
        return f"rope{'_neox' if self.neox else ''}{'_indirect' if self.indirect else ''}"

    @property
    def half(self) -> int:
        """Pairs of a head."""
        return self.rotary_dim // 2

    def batched(self, m: int) -> tuple[KernelType, ...]:
        return (BatchedRope(self.neox, True, self.heads, self.head_dim, self.max_len, self.rotary_dim, m=m),)

    def signature(self) -> Signature:
        return {
            "x": update(F32, self.heads, self.head_dim),
            "table": read(F32, self.max_len, self.half, 2),
            "position": position_argument(self.indirect, 0, self.max_len - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.heads * self.half // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        self.turn(k, k.arg.x.at(0, 0), position_value(k, "position", self.indirect))

    def turn(self, k: KernelBuilder, x: GlobalArray, position: Value) -> None:
        """Turn the heads of one token, which start at x; a thread takes a pair."""
        pair = k.ctaid.x * THREADS + k.tid.x
        with k.when((pair < self.heads * self.half) & (position < self.max_len)):
            head, i = pair // self.half, pair % self.half
            cosine, sine = k.load_vector(k.arg.table[position, i, 0], 2)
            row, distance = x.at(head * self.head_dim + (i if self.neox else i * 2)), self.half if self.neox else 1
            store_pair(k, row, distance, turned(k, load_pair(k, row, distance), cosine, sine))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x = arguments["x"].astype(np.float64)
        position = int(np.asarray(arguments["position"]).reshape(()))
        if position < self.max_len:
            cosine, sine = arguments["table"][position].astype(np.float64).T
            first, second = self._pairs(x)
            first[:], second[:] = first * cosine - second * sine, first * sine + second * cosine
        return {"x": x}

    def _pairs(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if self.neox:
            return x[:, : self.half], x[:, self.half : self.rotary_dim]
        return x[:, 0 : self.rotary_dim : 2], x[:, 1 : self.rotary_dim : 2]

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Two roundings of one unit (2^-24), of a product and of the result, each at most |first| + |second|; the values that
        are not turned are exact."""
        bound = np.zeros((self.heads, self.head_dim))
        first, second = self._pairs(np.abs(arguments["x"].astype(np.float64)))
        for part in self._pairs(bound):
            part[:] = (first + second) * 2 * UNIT + 2.0**-148
        return {"x": bound}

    def work(self) -> Work:
        pairs = self.heads * self.half
        return Work(flops=6 * pairs, bytes=F32.bytes * (4 * pairs + 2 * self.half))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, head_dim=64, max_len=100)
        yield cls(**fixed, heads=32, head_dim=128, max_len=33)
        yield cls(**fixed, heads=2, head_dim=64, max_len=7, rotary_dim=32)
        yield cls(**fixed, heads=3, head_dim=96, max_len=1)
        yield cls(**fixed, heads=1, head_dim=256, max_len=5)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        position = rng.integers(self.max_len, size=1, dtype=np.uint32)
        return {
            "x": rng.normal(0.0, 1.0, (self.heads, self.head_dim)).astype(np.float32),
            "table": rope_table(self.max_len, self.rotary_dim, 1e5),
            "position": position if self.indirect else position[0],
        }


@register(neox=(False, True), indirect=(True,))
@dataclass(frozen=True)
class BatchedRope(Rope):
    """Rotate the heads of m tokens, token i by the angles of positions[i], in place.

    x: f32[m, heads, head_dim]; positions: u32[m]; the rest as in rope, and a token has the bits that rope gives it. A token
    whose position is max_len or more is left as it is.
    """

    m: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", high=MOST_ROWS)

    @property
    def name(self) -> str:
        return f"batched_rope{'_neox' if self.neox else ''}"

    def signature(self) -> Signature:
        single = super().signature()
        return {
            "x": update(F32, self.m, self.heads, self.head_dim),
            "table": single["table"],
            "positions": read(U32, self.m, align=4),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(super().launch().grid[0], self.m), block=super().launch().block)

    def emit(self, k: KernelBuilder) -> None:
        row = k.ctaid.y
        self.turn(k, k.arg.x.at(row, 0, 0), k.load(k.arg.positions[row]))

    def _rows(self, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The arguments of rope for each token."""
        for x, position in zip(arguments["x"], arguments["positions"], strict=True):
            yield {"x": x, "table": arguments["table"], "position": position}

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"x": np.stack([Rope.reference(self, **row)["x"] for row in self._rows(arguments)])}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"x": np.stack([Rope.tolerance(self, **row)["x"] for row in self._rows(arguments)])}

    def work(self) -> Work:
        single = super().work()
        return Work(flops=self.m * single.flops, bytes=self.m * (single.bytes + U32.bytes))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, head_dim=64, max_len=100, m=3)
        yield cls(**fixed, heads=8, head_dim=128, max_len=33, m=8)
        yield cls(**fixed, heads=2, head_dim=64, max_len=7, rotary_dim=32, m=5)
        yield cls(**fixed, heads=3, head_dim=96, max_len=1, m=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": rng.normal(0.0, 1.0, (self.m, self.heads, self.head_dim)).astype(np.float32),
            "table": rope_table(self.max_len, self.rotary_dim, 1e5),
            "positions": rng.integers(self.max_len, size=self.m, dtype=np.uint32),
        }
