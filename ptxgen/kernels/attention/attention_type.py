"""What every kernel of one token's attention has in common: shape, arguments and the exact scores. How the positions are dealt
out to blocks and warps is a kernel's own business."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.ring import rows_of
from ptxgen.kernels.attention.scores import PLAIN_SCORES, HeadScores, Scoring
from ptxgen.kernels.attention.tiles import Tiles
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.shape import ValueWidth, require, require_head_dim
from ptxgen.printable import literal
from ptxgen.types import F32

LONGEST = 1 << 24
"""Positions: their sums with sizes of parts and pages stay below 2^32."""


def positions(kernel: KernelType, max_len: int, length: int | None) -> int:
    """The positions that a launch goes over: max_len unless told otherwise. Raises ArgumentError for a length out of range."""
    if length is None:
        return max_len
    if not 1 <= length <= max_len:
        raise ArgumentError(f"{kernel.name}: length must be from 1 to max_len ({max_len}), got {literal(length)}")
    return length


@dataclass(frozen=True)
class AttentionType(ValueWidth, KernelType):
    """q: f32[heads, head_dim] over the first `length` positions of k_cache: f32[kv_heads, max_len, head_dim] and v_cache:
    f32[kv_heads, max_len, value_dim]; value_dim is head_dim unless it is given."""

    family: ClassVar[str] = "attention"
    indirect: bool = field(metadata=HIDDEN)
    heads: int
    kv_heads: int
    head_dim: int
    max_len: int
    value_dim: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require(self, "heads", "kv_heads")
        require_head_dim(self, self.head_dim, self.value_dim)
        require(self, "max_len", high=LONGEST)
        if self.heads % self.kv_heads:
            raise ArgumentError(f"{self.name}: heads must be a multiple of kv_heads ({self.kv_heads}), got {self.heads}")

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def scores(self) -> Scoring:
        """Which positions the token sees, and how."""
        return PLAIN_SCORES

    @property
    def kept(self) -> int | None:
        """Rows of the ring that the cache is, None if each of max_len positions has its own (ring.py)."""
        return None

    @property
    def rows(self) -> int:
        """Positions that the cache has room for."""
        return self.max_len if self.kept is None else self.kept

    def scores_of(self, k: KernelBuilder, first: Value, count: int, length: Value) -> HeadScores:
        """Those of `count` heads from number `first` on; length: as `length` gives it."""
        return self.scores.of_heads(k, self.head_dim, self.heads, first, count, length)

    def signature(self) -> Signature:
        return {
            "q": read(F32, self.heads, self.head_dim),
            "k_cache": read(F32, self.kv_heads, self.rows, self.head_dim, partial=True),
            "v_cache": read(F32, self.kv_heads, self.rows, self.value_width, partial=True),
            "length": position_argument(self.indirect, 1, self.max_len),
        }

    @abstractmethod
    def work(self, length: int | None = None) -> Work:
        """The least work of one launch over `length` positions, max_len of them unless told otherwise. Raises ArgumentError for
        a length that is not in 1..max_len."""

    def tiles(self, warps: int) -> Tiles:
        """How so many warps go over the cache."""
        return Tiles(self.head_dim, warps, self.kept, self.value_dim)

    def places(self, k: KernelBuilder, first: Value, of_value: Value) -> tuple[GlobalArray, GlobalArray, GlobalArray]:
        """Where value `first` of a row of the block's head (%ctaid.x) is in q and in the first row of K, and value `of_value`
        in that of V."""
        kv_head = k.ctaid.x // self.group
        keys, values = k.arg.k_cache.at(kv_head, 0, first), k.arg.v_cache.at(kv_head, 0, of_value)
        return k.arg.q.at(k.ctaid.x, first), keys, values

    def length(self, k: KernelBuilder) -> tuple[Value, Value]:
        """Whether the length is in range, and the length, 0 if it is not."""
        length = position_value(k, "length", self.indirect)
        allowed = (length > 0) & (length <= self.max_len)
        return allowed, k.select(allowed, length, 0)

    def given_length(self, arguments: Mapping[str, Any]) -> int:
        """The length that the arguments hold, 0 if it is out of range."""
        length = int(np.asarray(arguments["length"]).reshape(()))
        return length if length <= self.max_len else 0

    def seen_rows(self, length: int) -> slice | NDArray[np.int64]:
        """The rows of the cache that the last of `length` positions sees."""
        return rows_of(self.scores.first(length), length, self.kept)

    def exact(
        self, arguments: Mapping[str, Any], length: int, *, magnitude: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores [heads, seen] and values [heads, seen, value_dim] of the positions that the last of `length` sees, in float64;
        with `magnitude` of the absolute numbers, without cap and ALiBi."""
        seen = self.seen_rows(length)
        q, keys, values = (
            arguments["q"].astype(np.float64),
            arguments["k_cache"][:, seen].astype(np.float64).repeat(self.group, axis=0),
            arguments["v_cache"][:, seen].astype(np.float64).repeat(self.group, axis=0),
        )
        if magnitude:
            products = np.einsum("hd,hld->hl", np.abs(q), np.abs(keys))
            return products * self.scores.factor(self.head_dim), np.abs(values)
        return self.scores.exact(np.einsum("hd,hld->hl", q, keys), self.head_dim, self.distances(length)), values

    def distances(self, length: int) -> NDArray[np.int64]:
        """Of the positions that the last of `length` sees from this, [seen]."""
        return np.arange(self.scores.seen(length))[::-1]

    def score_units(self, arguments: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """The rounding bound of each score in units of 2^-24: a fused addition for each value of a lane, 5 of the tree and two
        of the scale, each at most the score of the absolute numbers; and what cap and ALiBi add."""
        sizes = self.exact(arguments, length, magnitude=True)[0]
        return (Tiles(self.head_dim, 1).values + 7) * sizes + self.scores.units(sizes, self.distances(length))

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """A cache whose positions that are not seen hold NaN, which no result may show."""
        length = rng.integers(1, self.max_len + 1, size=1, dtype=np.uint32)
        widths = {"k_cache": self.head_dim, "v_cache": self.value_width}
        rows = (self.kv_heads, self.rows)
        caches = {name: rng.normal(size=(*rows, width)).astype(np.float32) for name, width in widths.items()}
        unseen = np.ones(self.rows, bool)
        unseen[self.seen_rows(int(length[0]))] = False
        for cache in caches.values():
            cache[:, unseen] = np.nan
        return {
            "q": rng.normal(0.0, 2.0, (self.heads, self.head_dim)).astype(np.float32),
            **caches,
            "length": length if self.indirect else length[0],
        }
