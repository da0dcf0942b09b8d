"""What a token's queries, keys and values go through between their matrices and attention, in one launch: rope_indirect of the
queries and of the keys and kv_cache_scatter_indirect, with `bias` three residual_add before them. The norm of qwen3's heads is
not here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.registry import register
from ptxgen.kernels.rope.rope import Pair, Rope, load_pairs, neighbours, store_pairs, turned
from ptxgen.kernels.rope.table import rope_table
from ptxgen.kernels.shape import require
from ptxgen.types import F32, U32

THREADS = 128


Row = Callable[[str, Value, Value], GlobalArray]
"""Where q, k or v (a name) has value `first` of a head: (name, head, first)."""

Keep = Callable[[str, Value, Value, int, Sequence[Pair]], None]
"""Writes pairs of a key or a value to the cache: (`k` or `v`, head, first, distance of the two of a pair, pairs)."""


@dataclass(frozen=True)
class HeadPairs:
    """What a token's queries, keys and values go through, pair by pair: bias, rotation, and the copy into the cache. Fields as
    in RopeScatter. count: successive pairs that a thread takes, 1 or 2, a divisor of rotary_dim / 2. stored: opens the branch
    of those who may store; what they store is loaded and computed before it."""

    neox: bool
    bias: bool
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    count: int = 1
    stored: Callable[[], AbstractContextManager[Any]] = nullcontext

    def write(self, k: KernelBuilder, head: Value, i: Value, position: Value, row: Row, keep: Keep) -> None:
        """The pairs of a head from pair i on; the heads are numbered through: those of q, then of k, then of v. Values past
        rotary_dim that no bias is added to are not written in place, and those of q not looked at."""
        with k.when(head < self.heads):
            self._rotated(k, "q", head, i, position, row, keep)
        with k.otherwise():
            with k.when(head < self.heads + self.kv_heads):
                self._rotated(k, "k", head - self.heads, i, position, row, keep)
            with k.otherwise():
                self._pair(k, "v", head - (self.heads + self.kv_heads), i, position, row, keep, turn=False)

    def _rotated(
        self, k: KernelBuilder, name: str, head: Value, i: Value, position: Value, row: Row, keep: Keep
    ) -> None:  # fmt: skip
        """Pairs of a head of q or k: such as are turned, or such past rotary_dim."""
        if self.rotary_dim == self.head_dim:
            self._pair(k, name, head, i, position, row, keep, turn=True)
        else:
            with k.when(i < self.rotary_dim // 2):
                self._pair(k, name, head, i, position, row, keep, turn=True)
            if self.bias or name != "q":  # else it stays as it is and goes nowhere
                with k.otherwise():
                    self._pair(k, name, head, i, position, row, keep, turn=False)

    def _pair(
        self, k: KernelBuilder, name: str, head: Value, i: Value, position: Value, row: Row, keep: Keep, *, turn: bool
    ) -> None:  # fmt: skip
        """The pairs of a head from pair i on: neighbours, unless they are turned in the style of neox."""
        first, distance = (i, self.rotary_dim // 2) if turn and self.neox else (i * 2, 1)
        place = row(name, head, first)
        pairs = load_pairs(k, place, distance, self.count)
        if self.bias:
            biases = load_pairs(k, getattr(k.arg, f"{name}_bias").at(head * self.head_dim + first), distance, self.count)
            pairs = [(pair[0] + bias[0], pair[1] + bias[1]) for pair, bias in zip(pairs, biases, strict=True)]
        if turn:
            angles = neighbours(k.load_vector(k.arg.table[position, i, 0], 2 * self.count))
            pairs = [turned(k, pair, cosine, sine) for pair, (cosine, sine) in zip(pairs, angles, strict=True)]
        with self.stored():
            if turn or self.bias:
                store_pairs(k, place, distance, pairs)
            if name != "q":
                keep(name, head, first, distance, pairs)


@register(neox=(False, True), bias=(False, True))
@dataclass(frozen=True)
class RopeScatter(KernelType):
    """Rotate the queries and keys of a token, in place, and write its keys and values into the cache.

    q: f32[heads, head_dim]; k, v: f32[kv_heads, head_dim]; table: f32[max_len, rotary_dim / 2, 2], pairs, `neox` and rotary_dim
    as in rope; k_cache, v_cache: f32[kv_heads, max_len, head_dim], of which [:, position] is written; position: u32[1]. With
    `bias`, q_bias: f32[heads * head_dim] and k_bias, v_bias: f32[kv_heads * head_dim] are added to q, k and v first, to v in
    place, too. The bits are those of the kernels one after the other. A position of max_len or more changes nothing at all.
    """

    family: ClassVar[str] = "attention"
    neox: bool = field(metadata=HIDDEN)
    bias: bool = field(metadata=HIDDEN)
    heads: int
    kv_heads: int
    head_dim: int
    max_len: int
    rotary_dim: int = 0

    def __post_init__(self) -> None:
        require(self, "heads", "kv_heads", "max_len")
        require(self, "head_dim", low=2, multiple=2)
        if self.rotary_dim == 0:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        require(self, "rotary_dim", low=2, high=self.head_dim, multiple=2)

    @property
    def name(self) -> str:
        return f"{'bias_' if self.bias else ''}rope{'_neox' if self.neox else ''}_scatter_indirect"

    @property
    def tokens(self) -> dict[str, int]:
        """The heads of q, k and v."""
        return {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}

    def signature(self) -> Signature:
        biases: Signature = {f"{name}_bias": read(F32, heads * self.head_dim) for name, heads in self.tokens.items()}
        return {
            "q": update(F32, self.heads, self.head_dim),
            "k": update(F32, self.kv_heads, self.head_dim),
            "v": (update if self.bias else read)(F32, self.kv_heads, self.head_dim),
            **(biases if self.bias else {}),
            "table": read(F32, self.max_len, self.rotary_dim // 2, 2),
            "k_cache": update(F32, self.kv_heads, self.max_len, self.head_dim, partial=True),
            "v_cache": update(F32, self.kv_heads, self.max_len, self.head_dim, partial=True),
            "position": position_argument(True, 0, self.max_len - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self._pairs // THREADS), block=THREADS)

    @property
    def _pairs(self) -> int:
        return sum(self.tokens.values()) * self.head_dim // 2

    def emit(self, k: KernelBuilder) -> None:
        """A thread takes a pair of values of a head: the heads of q, then of k, then of v."""
        position = position_value(k, "position", True)
        pair = k.ctaid.x * THREADS + k.tid.x
        with k.when((pair < self._pairs) & (position < self.max_len)):
            head, i = pair // (self.head_dim // 2), pair % (self.head_dim // 2)
            self.pairs.write(
                k, head, i, position,
                lambda name, head, first: getattr(k.arg, name).at(head, first),
                lambda name, head, first, distance, pairs: store_pairs(
                    k, getattr(k.arg, f"{name}_cache").at(head, position, first), distance, pairs
                ),
            )  # fmt: skip

    @property
    def pairs(self) -> HeadPairs:
        """What is done to the pairs of values."""
        return HeadPairs(self.neox, self.bias, self.heads, self.kv_heads, self.head_dim, self.rotary_dim)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        token, _ = self.exact(arguments)
        caches = self._scatter.reference(
            k_cache=arguments["k_cache"].astype(np.float64),
            v_cache=arguments["v_cache"].astype(np.float64),
            k=token["k"],
            v=token["v"],
            position=arguments["position"],
        )
        return self._written({**token, **caches})

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """A value in the cache is off as its source is; all others there are exact."""
        _, bounds = self.exact(arguments)
        untouched = np.zeros(arguments["k_cache"].shape)
        caches = self._scatter.reference(
            k_cache=untouched, v_cache=untouched, k=bounds["k"], v=bounds["v"], position=arguments["position"]
        )
        return self._written({**bounds, **caches})

    @property
    def _scatter(self) -> KvCacheScatter:
        return KvCacheScatter(indirect=True, kv_heads=self.kv_heads, head_dim=self.head_dim, max_len=self.max_len)

    def _written(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {name: value for name, value in values.items() if name != "v" or self.bias}

    def exact(self, arguments: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """q, k and v afterwards, in float64, and how far off they may be: what rope allows, after at most one rounding of each
        value by its bias, of which a turn gives each value of a pair at most the sum of both: half of rope's two roundings,
        and an eighth of a unit is plenty for the second order."""
        values: dict[str, NDArray[Any]] = {}
        bounds: dict[str, NDArray[Any]] = {}
        inside = int(arguments["position"][0]) < self.max_len
        for name, heads in self.tokens.items():
            value = arguments[name].astype(np.float64)
            bound = np.zeros(value.shape)
            if self.bias and inside:
                value = value + arguments[f"{name}_bias"].astype(np.float64).reshape(value.shape)
                bound = np.abs(value) * UNIT
            if name != "v" and inside:
                shape = {"head_dim": self.head_dim, "max_len": self.max_len, "rotary_dim": self.rotary_dim}
                rope = Rope(neox=self.neox, indirect=True, heads=heads, **shape)
                turn = {"x": value, "table": arguments["table"], "position": arguments["position"]}
                of_turn = np.asarray(rope.tolerance(**turn)["x"])
                value = rope.reference(**turn)["x"]
                bound = np.where(of_turn > 0, of_turn * (1.5625 if self.bias else 1.0), bound)
            values[name], bounds[name] = value, bound
        return values, bounds

    def work(self) -> Work:
        """What is not turned is neither read nor written in q and not written in k, unless a bias is added to it."""
        changed = self.head_dim if self.bias else self.rotary_dim
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.bias else 0
        queries = self.heads * 2 * changed
        keys = self.kv_heads * (2 * self.head_dim + changed)
        values = self.kv_heads * (3 if self.bias else 2) * self.head_dim
        turns = (self.heads + self.kv_heads) * self.rotary_dim // 2
        return Work(flops=6 * turns + bias, bytes=F32.bytes * (queries + keys + values + bias + self.rotary_dim) + U32.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, kv_heads=3, head_dim=64, max_len=100)
        yield cls(**fixed, heads=32, kv_heads=8, head_dim=128, max_len=17)
        yield cls(**fixed, heads=3, kv_heads=1, head_dim=96, max_len=1)
        yield cls(**fixed, heads=2, kv_heads=1, head_dim=64, max_len=3, rotary_dim=32)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shapes = {name: a.shape for name, a in self.signature().items() if isinstance(a, Array) and a.dtype == F32}
        return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} | {
            "table": rope_table(self.max_len, self.rotary_dim, 1e5),
            "position": rng.integers(self.max_len, size=1, dtype=np.uint32),
        }
