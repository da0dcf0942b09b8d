"""What a token's queries, keys and values go through between their matrices and attention, in one launch: biases or the norm of
heads (qwen3), rotation, and the write into a contiguous cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Scalar, Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT, with_outlier
from ptxgen.kernels.attention.head_pairs import HeadPairs
from ptxgen.kernels.attention.ring import require_ring, row_of
from ptxgen.kernels.norm.per_head_rmsnorm import normalised
from ptxgen.kernels.norm.rmsnorm import rms_bound, rms_normalised
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.registry import register
from ptxgen.kernels.rope.rope import Pair, Rope, store_pairs, turned
from ptxgen.kernels.rope.table import rope_table
from ptxgen.kernels.shape import ValueWidth, require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

THREADS = 128
NORMED = ("q", "k")
CACHES = ("k_cache", "v_cache")
LARGEST_HEAD = 256  # values of one that is normalised; a lane holds 8 of them and their gammas
SAMPLES = ((9, 3, 64, 100, 0), (32, 8, 128, 17, 0), (3, 1, 96, 1, 0), (2, 1, 64, 3, 32))
NORM_SAMPLES = ((16, 8, 128, 100, 0), (3, 1, 64, 1, 0), (2, 2, 192, 3, 0), (5, 1, 256, 7, 0))
"""heads, kv_heads, head_dim, max_len, rotary_dim."""


@register(neox=(False, True), bias=(False, True), normed=(False,))
@register(neox=(True,), bias=(False,), normed=(True,))
@dataclass(frozen=True)
class RopeScatter(ValueWidth, KernelType):
    """Rotate the queries and keys of a token, in place, and write its keys and values into the cache.

    q: f32[heads, head_dim]; k, v: f32[kv_heads, width], where the width of K is head_dim and that of V is value_dim, head_dim
    unless it is given; table: f32[max_len, rotary_dim / 2, 2], pairs, `neox` and rotary_dim as in rope; k_cache, v_cache:
    f32[kv_heads, max_len, width], of which [:, position] is written, with `ring` f32[kv_heads, ring, width] and [:, position %
    ring] (ring.py); position: u32[1]. With `bias`, q_bias: f32[heads * head_dim] and k_bias, v_bias: f32[kv_heads * width] are
    added to q, k and v first, to v in place, too. Or, `normed`, each head of q and k is normalised first, as by
    per_head_rmsnorm with q_gamma, k_gamma: f32[head_dim] and eps: f32 scalar: in the style of neox, without a bias, all of
    heads of 64, 128, 192 or 256 values, so that a lane has both values of a pair; value_dim is a multiple of 32. The bits are
    those of the kernels one after the other. A position of max_len or more changes nothing at all.
    """

    family: ClassVar[str] = "attention"
    neox: bool = field(metadata=HIDDEN)
    bias: bool = field(metadata=HIDDEN)
    heads: int
    kv_heads: int
    head_dim: int
    max_len: int
    rotary_dim: int = 0
    normed: bool = field(default=False, kw_only=True, metadata=HIDDEN)
    ring: int | None = field(default=None, kw_only=True)
    value_dim: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require(self, "heads", "kv_heads", "max_len")
        require_ring(self, self.ring)
        require(self, "head_dim", low=2, multiple=2)
        if self.value_dim is not None:
            require(self, "value_dim", low=2, multiple=WARP_SIZE if self.normed else 2)
        if self.rotary_dim == 0:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        require(self, "rotary_dim", low=2, high=self.head_dim, multiple=2)
        if self.normed and (self.bias or not can_norm(neox=self.neox, head_dim=self.head_dim, rotary_dim=self.rotary_dim)):
            raise ArgumentError(
                f"{self.name} rotates all of a head of 64, 128, 192 or {LARGEST_HEAD} values in the style of neox and adds no "
                f"bias, got {self.parameters()}"
            )

    @property
    def name(self) -> str:
        return (
            f"{'norm_' if self.normed else ''}{'bias_' if self.bias else ''}rope{'_neox' if self.neox else ''}_scatter_indirect"
        )

    @property
    def tokens(self) -> dict[str, int]:
        """The heads of q, k and v."""
        return {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}

    def width(self, name: str) -> int:
        """Values of a head of these."""
        return self.value_width if name == "v" else self.head_dim

    def signature(self) -> Signature:
        biases: Signature = {f"{name}_bias": read(F32, heads * self.width(name)) for name, heads in self.tokens.items()}
        gammas: Signature = {f"{name}_gamma": read(F32, self.head_dim) for name in NORMED} | {"eps": Scalar(F32, low=0.0)}
        rows = self.ring or self.max_len
        return {
            "q": update(F32, self.heads, self.head_dim),
            "k": update(F32, self.kv_heads, self.head_dim),
            "v": (update if self.bias else read)(F32, self.kv_heads, self.value_width),
            **(biases if self.bias else {}),
            "table": read(F32, self.max_len, self.rotary_dim // 2, 2),
            "k_cache": update(F32, self.kv_heads, rows, self.head_dim, partial=True),
            "v_cache": update(F32, self.kv_heads, rows, self.value_width, partial=True),
            "position": position_argument(True, 0, self.max_len - 1),
            **(gammas if self.normed else {}),
        }

    def launch(self) -> LaunchConfig:
        if self.normed:  # a warp a head
            return LaunchConfig(grid=sum(self.tokens.values()), block=WARP_SIZE)
        return LaunchConfig(grid=-(-self._pairs // THREADS), block=THREADS)

    @property
    def _pairs(self) -> int:
        return sum(heads * self.width(name) for name, heads in self.tokens.items()) // 2

    def emit(self, k: KernelBuilder) -> None:
        position = position_value(k, "position", True)
        (self._emit_heads if self.normed else self._emit_pairs)(k, position)

    def _emit_pairs(self, k: KernelBuilder, position: Value) -> None:
        """A thread takes a pair of values of a head: the heads of q, then of k, then of v."""
        pair = k.ctaid.x * THREADS + k.tid.x

        def keep(name: str, head: Value, first: Value, distance: int, pairs: Sequence[Pair]) -> None:
            row = row_of(position, self.ring)
            store_pairs(k, getattr(k.arg, f"{name}_cache").at(head, row, first), distance, pairs)

        with k.when((pair < self._pairs) & (position < self.max_len)):
            head, i = self.pairs.place(k, pair)
            self.pairs.write(k, head, i, position, lambda name, head, first: getattr(k.arg, name).at(head, first), keep)

    def _emit_heads(self, k: KernelBuilder, position: Value) -> None:
        """A block takes a head: those of q, then of k, then of v."""
        head = k.ctaid.x
        with k.when(position < self.max_len):
            with k.when(head < self.heads):
                self._turn_head(k, "q", head, position)
            with k.otherwise():
                with k.when(head < self.heads + self.kv_heads):
                    self._turn_head(k, "k", head - self.heads, position)
                with k.otherwise():
                    number = head - (self.heads + self.kv_heads)
                    x, cache = k.arg.v.at(number, k.lane), k.arg.v_cache.at(number, row_of(position, self.ring), k.lane)
                    values = [k.load(x[place]) for place in range(0, self.value_width, WARP_SIZE)]
                    for at, value in enumerate(values):
                        k.store(cache[at * WARP_SIZE], value)

    def _turn_head(self, k: KernelBuilder, name: str, head: Value, position: Value) -> None:
        """A head of q or k; of k into the cache, too. A lane has every 32nd value, so both of each of its pairs."""
        x, half = getattr(k.arg, name).at(head, k.lane), self.head_dim // 2
        angles = [k.load_vector(k.arg.table[position, k.lane + i, 0], 2) for i in range(0, half, WARP_SIZE)]
        values = list(normalised(k, x, getattr(k.arg, f"{name}_gamma").at(k.lane), self.head_dim))
        for number, (cosine, sine) in enumerate(angles):
            pair = turned(k, (values[number], values[number + len(angles)]), cosine, sine)
            for place, value in zip((number * WARP_SIZE, number * WARP_SIZE + half), pair, strict=True):
                k.store(x[place], value)
                if name == "k":
                    k.store(k.arg.k_cache.at(head, row_of(position, self.ring), k.lane)[place], value)

    @property
    def pairs(self) -> HeadPairs:
        """What is done to the pairs of values."""
        sizes = self.heads, self.kv_heads, self.head_dim, self.rotary_dim
        return HeadPairs(self.neox, self.bias, *sizes, value_dim=self.value_dim)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        token, _ = self.exact(arguments)
        caches = {name: arguments[name].astype(np.float64) for name in CACHES}
        return self.written({**token, **self.kept(caches, token, arguments)})

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """A value in the cache is off as its source is; all others there are exact."""
        _, bounds = self.exact(arguments)
        caches = {name: np.zeros(arguments[name].shape) for name in CACHES}
        return self.written({**bounds, **self.kept(caches, bounds, arguments)})

    def kept(
        self, caches: dict[str, NDArray[Any]], token: Mapping[str, NDArray[Any]], arguments: Mapping[str, Any]
    ) -> dict[str, NDArray[Any]]:
        """The caches with the token's key and value in them, if the position is in range."""
        position = int(np.asarray(arguments["position"]).reshape(()))
        if position < self.max_len:
            for name, cache in caches.items():
                cache[:, row_of(position, self.ring)] = token[name[0]]
        return caches

    def written(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Those that the kernel writes."""
        return {name: value for name, value in values.items() if name != "v" or self.bias}

    def exact(self, arguments: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """q, k and v afterwards, in float64, and how far off they may be. A turn gives each value of a pair at most the sum of
        what the norm lets both be off by, and its own roundings are those of values that much larger: a sixteenth is plenty for
        the second order."""
        if not self.normed or int(arguments["position"][0]) >= self.max_len:
            return self._turned(arguments)
        eps, off, normed = float(arguments["eps"]), {}, dict(arguments)
        for name in NORMED:
            gamma = arguments[f"{name}_gamma"].astype(np.float64)
            normed[name] = rms_normalised(arguments[name].astype(np.float64), gamma, eps)
            bound = rms_bound(normed[name], chain=self.head_dim // WARP_SIZE, tree=5)
            off[name] = np.tile(bound[:, : self.head_dim // 2] + bound[:, self.head_dim // 2 :], 2)
        values, bounds = self._turned(normed)
        return values, bounds | {name: bounds[name] * 1.0625 + off[name] for name in NORMED}

    def _turned(self, arguments: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
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
        bias = 2 * self._pairs if self.bias else 0
        queries = self.heads * 2 * changed
        keys = self.kv_heads * (2 * self.head_dim + changed)
        values = self.kv_heads * (3 if self.bias else 2) * self.value_width
        turns = (self.heads + self.kv_heads) * self.rotary_dim // 2
        gammas, norms = (len(NORMED) * self.head_dim, 8 * turns) if self.normed else (0, 0)
        moved = queries + keys + values + bias + gammas + self.rotary_dim
        return Work(flops=6 * turns + bias + norms, bytes=F32.bytes * moved + U32.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for heads, kv_heads, head_dim, max_len, rotary_dim in NORM_SAMPLES if fixed.get("normed") else SAMPLES:
            sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
            shape: dict[str, Any] = {**sizes, "max_len": max_len, "rotary_dim": rotary_dim}
            yield cls(**fixed, **shape)
        yield cls(**fixed, heads=2, kv_heads=1, head_dim=64, max_len=100, ring=64)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shapes = {name: a.shape for name, a in self.signature().items() if isinstance(a, Array) and a.dtype == F32}
        inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} | {
            "table": rope_table(self.max_len, self.rotary_dim, 1e5),
            "position": rng.integers(self.max_len, size=1, dtype=np.uint32),
        }
        if not self.normed:
            return inputs
        inputs |= {name: with_outlier(rng, heads, self.width(name)) for name, heads in self.tokens.items()}
        gammas = {f"{name}_gamma": rng.normal(1.0, 0.3, self.head_dim).astype(np.float32) for name in NORMED}
        return {**inputs, **gammas, "eps": np.float32(1e-6)}


def can_norm(*, neox: bool, head_dim: int, rotary_dim: int, value_width: int = WARP_SIZE) -> bool:
    """Whether a kernel that rotates heads of this kind can normalise them, too."""
    whole = rotary_dim == head_dim and head_dim % (2 * WARP_SIZE) == 0 == value_width % WARP_SIZE
    return neox and whole and head_dim <= LARGEST_HEAD
