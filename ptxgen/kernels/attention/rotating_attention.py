"""Attention of one new token that rotates its queries and its key by itself and appends to the cache, in one launch, with or
without digits of the result: rope_scatter or norm_rope_scatter, and then grouped_attention, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Argument, Array, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, MOST_CODE, KernelType, Work
from ptxgen.dsl.memory import GlobalArray, SharedPart, SharedView
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.group_tiles import Load, Locate
from ptxgen.kernels.attention.grouped_attention import GroupedAttention, GroupedAttentionDigits
from ptxgen.kernels.attention.merge import LEAST_SM
from ptxgen.kernels.attention.newest_tiles import NewestTiles, Rows
from ptxgen.kernels.attention.norm_rope_scatter import NormRopeScatter
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.attention.token_heads import BlockToken, TokenHeads
from ptxgen.kernels.position import position_value
from ptxgen.kernels.registry import register
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32


@register(indirect=(True,), neox=(False, True), bias=(False, True), normed=(False,))
@register(indirect=(True,), neox=(True,), bias=(False,), normed=(True,))
@dataclass(frozen=True)
class RotatingAttention(GroupedAttention):
    """rope_scatter and then grouped_attention_indirect in one launch, bit for bit; q, k and v stay as they are.

    q: f32[heads, head_dim]; k, v: f32[kv_heads, head_dim]; table: f32[max_len, head_dim / 2, 2]; `neox` and, with `bias`,
    q_bias, k_bias and v_bias as in rope_scatter, of which all of a head is rotated; or, `normed`, q_gamma, k_gamma and eps as
    in norm_rope_scatter. k_cache, v_cache: f32[kv_heads, max_len, head_dim], of which [:, position] is written, and what is
    before it read; position: u32[1]. out, peaks, totals, weighted, counters and all fields as in grouped_attention, over the
    first position + 1 positions. A position of max_len or more changes nothing at all.

    Each block that attends to the token itself makes its key and value, in shared memory, and one of each key/value head writes
    them into the caches, where none reads them in this launch: nobody waits for the writer.

    The position, the table, biases and gammas are constant, and the caches settled: a launch that starts early loads what it
    needs of them, of the caches a tile a warp, before it waits, if there are no more than `short` positions.
    """

    waits_inside = True
    least_sm = LEAST_SM
    most_code = MOST_CODE
    neox: bool = field(kw_only=True, metadata=HIDDEN)
    bias: bool = field(kw_only=True, metadata=HIDDEN)
    normed: bool = field(kw_only=True, metadata=HIDDEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normed and (
            self.bias or not NormRopeScatter.suits(neox=self.neox, head_dim=self.head_dim, rotary_dim=self.head_dim)
        ):
            raise ArgumentError(
                f"{self.name} normalises heads of 64, 128, 192 or 256 values in the style of neox and adds no bias, got "
                f"{self.parameters()}"
            )

    @property
    def style(self) -> str:
        """The beginning of the name: what is done to heads."""
        return f"{'norm_' if self.normed else ''}{'bias_' if self.bias else ''}rope_{'neox_' if self.neox else ''}"

    @property
    def name(self) -> str:
        return f"{self.style}grouped_attention_indirect"

    @property
    def scatter(self) -> RopeScatter:
        """The launch before that this one makes needless."""
        kind = NormRopeScatter if self.normed else RopeScatter
        return kind(self.neox, self.bias, self.heads, self.kv_heads, self.head_dim, self.max_len)

    def signature(self) -> Signature:
        attention, scatter = super().signature(), self.scatter.signature()
        given = {name: read(F32, heads, self.head_dim) for name, heads in self.scatter.tokens.items()}
        rest = {name: _read_early(argument) for name, argument in scatter.items() if name not in given}
        kept = {name: argument for name, argument in attention.items() if name not in ("q", "length")}
        return {**kept, **given, **rest}

    def length(self, k: KernelBuilder) -> tuple[Value, Value]:
        position = position_value(k, "position", True)
        allowed = position < self.max_len
        return allowed, k.select(allowed, position + 1, 0)

    def _token(self, queries: int) -> TokenHeads:
        return TokenHeads(self.neox, self.bias, self.normed, self.head_dim, queries, self.warps * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        allowed, length = self.length(k)
        held = self._token(self.group_tiles.heads).room(k)
        registers = self._newest.registers(k)
        with k.when(length <= self.short):
            with k.when(allowed & (k.ctaid.x < self.heads)):
                self._attend_alone(k, held, registers, length - 1, allowed)
            with k.otherwise():
                k.wait_for_launch_before()
        with k.otherwise():
            k.wait_for_launch_before()
            self._attend_in_parts(k, held, length)

    @property
    def _newest(self) -> NewestTiles:
        return NewestTiles(self.head_dim, self.warps)

    def _attend_alone(
        self, k: KernelBuilder, held: SharedView, registers: tuple[Rows, ...], position: Value, allowed: Value
    ) -> None:  # fmt: skip
        """Write what the block's head attends to, at a position that is in range, as `allowed` says."""
        token, tiles = self._token(1), self._newest
        first, kv_head = tiles.first(k), k.ctaid.x // self.group
        _, keys, values = self.places(k, first)
        block = BlockToken(k.ctaid.x, 1, kv_head, position, k.ctaid.x % self.group == 0)
        share = token.begin(k, block)
        before = tiles.begin(k, registers, keys, values, position)
        k.wait_for_launch_before()
        token.finish(k, block, share, token.fetch(k, share), held)
        k.barrier()
        query, key, value = (token.row(k, held, slot, first) for slot in range(3))
        part = tiles.softmax_with(k, tiles.row(k, query), before, key, value, self.scale)
        self.write(k, tiles.merge(k, part), allowed)

    def _sources(
        self, k: KernelBuilder, held: SharedView, kv_head: Value, first: Value, heads: Value, part: Value, count: Value,
        length: Value,
    ) -> tuple[SharedPart, Locate]:  # fmt: skip
        """The block of the last part has the newest row in shared memory."""
        tiles, position, newest = self.group_tiles, length - 1, part == count - 1
        token = self._token(tiles.heads)
        stores = newest & (first == kv_head * self.group)
        token.prepare(k, BlockToken(first, heads, kv_head, position, stores, newest), held)
        k.barrier()
        own = tiles.first(k)
        key, value = (token.row(k, held, slot, own) for slot in (token.key, token.key + 1))
        caches = [cache.at(kv_head, 0, own) for cache in (k.arg.k_cache, k.arg.v_cache)]

        def locate(start: Value) -> tuple[Load, Load]:
            keys, values = (
                self._load_before(k, cache, start, position, row) for cache, row in zip(caches, (key, value), strict=True)
            )
            return keys, values

        return token.row(k, held, 0, own), locate

    def _load_before(
        self, k: KernelBuilder, cache: GlobalArray, start: Value, position: Value, newest: SharedPart
    ) -> Load:  # fmt: skip
        """Rows of the tile from position `start` on: those before `position` from the cache, others are `newest`."""

        def load(row: Value, places: range, width: int) -> list[Value]:
            at = start + row
            values = super(RotatingAttention, self)._load(k, cache)(k.min(at, position - 1), places, width)
            for number, place in enumerate(places):
                k.load_where(at >= position, newest[place], values[number * width : (number + 1) * width])
            return values

        return load

    def as_grouped(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of grouped_attention that stand for these, in float64, and how far off q, k and v may be: `q_off`,
        `k_off` and `v_off`."""
        position = int(np.asarray(arguments["position"]).reshape(()))
        exact, off = self.scatter.exact(arguments)
        caches = {name: arguments[name].astype(np.float64) for name in ("k_cache", "v_cache")}
        if position < self.max_len:
            for name, cache in caches.items():
                cache[:, position] = exact[name[0]]
        bounds = {f"{name}_off": off[name] for name in self.scatter.tokens}
        return {**arguments, "q": exact["q"], **caches, **bounds, "length": np.array([min(position, self.max_len) + 1])}

    def score_units(self, arguments: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """As there, and what scores are off by because the queries and the last key are."""
        return super().score_units(arguments, length) + self._off(arguments, length)

    def _errors(self, arguments: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        return super()._errors(arguments, length) + self._off(arguments, length)

    def _off(self, arguments: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """In units of 2^-24, [heads, length]. The last value is off, too, where it has a bias: by a unit, as if its weight
        were."""
        keys = arguments["k_cache"][:, :length].repeat(self.group, axis=0)
        last = arguments["k_off"].repeat(self.group, axis=0)
        scale = UNIT * np.sqrt(self.head_dim)
        units: NDArray[np.float64] = np.einsum("hd,hld->hl", arguments["q_off"], np.abs(keys)) / scale
        units[:, -1] += np.einsum("hd,hd->h", np.abs(arguments["q"]) + arguments["q_off"], last) / scale + self.bias
        return units

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        given = self.as_grouped(arguments)
        return {**super().reference(**given), **{name: given[name] for name in ("k_cache", "v_cache")}}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """That of grouped_attention over what the rotation lets queries, key and value be, and that of the caches."""
        scattered = self.scatter.tolerance(**arguments)
        bounds = super().tolerance(**self.as_grouped(arguments))
        return {**bounds, **{name: scattered[name] for name in ("k_cache", "v_cache")}}

    def work(self, length: int | None = None) -> Work:
        """Of the scatter and of attention, without what the one leaves to the other: rotated queries are neither written nor
        read, rotated keys not written back, and the row that is written not read."""
        attention, scatter = super().work(length), self.scatter.work()
        queries, keys = 2 * self.heads, (4 if self.bias else 3) * self.kv_heads
        return Work(
            flops=attention.flops + scatter.flops,
            bytes=attention.bytes + scatter.bytes - F32.bytes * (queries + keys) * self.head_dim,
        )

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=6, kv_heads=1, head_dim=64, max_len=200, splits=3, least=32, short=32)
        yield cls(**fixed, heads=1, kv_heads=1, head_dim=64, max_len=2, splits=2, least=32, short=32)
        yield cls(**fixed, heads=2, kv_heads=2, head_dim=128, max_len=40, splits=2, least=32, short=64)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """What stands in the caches at the position and after it is so large that a result with any of it is far off."""
        given = super().inputs(rng)
        position = given.pop("length") - 1
        for name in ("k_cache", "v_cache"):
            given[name][:, int(position[0]) :] = 1e9
        rotated = self.scatter.inputs(rng)
        return {**{name: rotated[name] for name in rotated if name not in given}, **given, "position": position}


@register(indirect=(True,), neox=(False, True), bias=(False, True), normed=(False,))
@register(indirect=(True,), neox=(True,), bias=(False,), normed=(True,))
@dataclass(frozen=True)
class RotatingAttentionDigits(RotatingAttention, GroupedAttentionDigits):
    """rope_scatter or norm_rope_scatter and then grouped_attention_digits_indirect in one launch, bit for bit.

    All arguments as those of rotating_attention (rope_grouped_attention_indirect), and digits, scales and sums as there.
    """

    @property
    def name(self) -> str:
        return f"{self.style}grouped_attention_digits_indirect"

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=2, kv_heads=1, head_dim=128, max_len=130, splits=4, least=32, short=64, digits=2)
        yield cls(**fixed, heads=1, kv_heads=1, head_dim=64, max_len=2, splits=2, least=32, short=32, digits=3)
        yield cls(**fixed, heads=5, kv_heads=1, head_dim=64, max_len=40, splits=2, least=32, short=64, digits=3)


def _read_early(argument: Argument) -> Argument:
    """The argument as one that the kernel may read before it waits."""
    if not isinstance(argument, Array):
        return argument
    return replace(argument, constant=True) if argument.direction == "in" else replace(argument, settled=True)
