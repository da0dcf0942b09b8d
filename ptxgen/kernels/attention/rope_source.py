"""RoPE-fused attention of a token: the launch adds biases or normalises heads, rotates queries and the key, and writes key and
value into the caches. The bits are those of rope_scatter or norm_rope_scatter, and then grouped_attention.

Each block that attends to the token itself computes its key and value, in shared memory. One block of each key/value head
writes them into the caches. No block reads them there in this launch, so none waits for the writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Argument, Array, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.memory import GlobalArray, SharedPart, SharedView
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.attention.attention_type import AttentionType
from ptxgen.kernels.attention.group_tiles import GroupTiles, Load, Locate
from ptxgen.kernels.attention.newest_tiles import NewestTiles, Rows
from ptxgen.kernels.attention.query_source import BlockPart, InParts, QuerySource, WriteHead, cached_rows
from ptxgen.kernels.attention.ring import row_of
from ptxgen.kernels.attention.rope_scatter import CACHES, LARGEST_HEAD, RopeScatter, can_norm
from ptxgen.kernels.attention.token_heads import BlockToken, TokenHeads
from ptxgen.kernels.position import position_value
from ptxgen.target import DEPENDENT_SM, WARP_SIZE
from ptxgen.types import F32


@dataclass(frozen=True)
class RopeFused(QuerySource):
    """q: f32[heads, head_dim]; k, v: f32[kv_heads, head_dim]; table: f32[max_len, head_dim / 2, 2]; `neox` and, with `bias`,
    q_bias, k_bias and v_bias as in rope_scatter, of which all of a head is rotated; or, `normed`, q_gamma, k_gamma and eps as
    in norm_rope_scatter. q, k and v stay as they are. k_cache, v_cache: f32[kv_heads, max_len, head_dim]: [:, position] is
    written, and what is before it read; position: u32[1]. A position of max_len or more changes nothing at all.

    The position, the table, biases and gammas are constant, and the caches settled: a dependent launch loads what it
    needs of them, of the caches a tile a warp, before it waits, if the sequence is short. The text for GPUs without dependent
    launches loads no row before it needs it.
    """

    waits_inside = True
    neox: bool
    bias: bool = False
    normed: bool = False

    @property
    def prefix(self) -> str:
        return f"{'norm_' if self.normed else ''}{'bias_' if self.bias else ''}rope_{'neox_' if self.neox else ''}"

    def require(self, attention: AttentionType) -> None:
        whole = attention.head_dim
        if attention.value_width != whole:
            raise ArgumentError(
                f"{attention.name} needs values as wide as keys, {whole}, got a value_dim of {attention.value_dim}"
            )
        if whole > LARGEST_HEAD:
            raise ArgumentError(f"{attention.name} rotates heads of up to {LARGEST_HEAD} values, got {whole}")
        if self.normed and (self.bias or not can_norm(neox=self.neox, head_dim=whole, rotary_dim=whole)):
            raise ArgumentError(
                f"{attention.name} normalises heads of 64, 128, 192 or 256 values in the style of neox and adds no bias, got "
                f"{attention.parameters()}"
            )

    def scatter(self, attention: AttentionType) -> RopeScatter:
        """The launch that this source replaces."""
        a = attention
        return RopeScatter(self.neox, self.bias, a.heads, a.kv_heads, a.head_dim, a.max_len, normed=self.normed, ring=a.kept)

    def signature(self, attention: AttentionType, plain: Signature) -> Signature:
        scatter = self.scatter(attention)
        given = {name: read(F32, heads, attention.head_dim) for name, heads in scatter.tokens.items()}
        rest = {name: _read_early(argument) for name, argument in scatter.signature().items() if name not in given}
        kept = {name: argument for name, argument in plain.items() if name not in ("q", "length")}
        return {**kept, **given, **rest}

    def token(self, head_dim: int, queries: int, warps: int) -> TokenHeads:
        """How a block of so many warps makes queries, the key and the value."""
        return TokenHeads(self.neox, self.bias, self.normed, head_dim, queries, warps * WARP_SIZE)

    def newest(self, k: KernelBuilder, attention: AttentionType, warps: int) -> NewestTiles:
        """How a block attends to the rows before the newest, and to that."""
        return NewestTiles(attention.head_dim, warps, attention.kept, early=k.target.sm >= DEPENDENT_SM)

    def emit(
        self, k: KernelBuilder, attention: AttentionType, tiles: GroupTiles, short: int, write: WriteHead, in_parts: InParts
    ) -> None:
        position = position_value(k, "position", True)
        allowed = position < attention.max_len
        length = k.select(allowed, position + 1, 0)
        held = self.token(attention.head_dim, tiles.heads, tiles.warps).room(k)
        registers = self.newest(k, attention, tiles.warps).registers(k)
        with k.when(attention.scores.device_seen(k, length) <= short):
            with k.when(allowed & (k.ctaid.x < attention.heads)):
                self._attend_alone(k, attention, tiles.warps, held, registers, length, allowed, write)
            with k.otherwise():
                k.wait_for_launch_before()
        with k.otherwise():
            k.wait_for_launch_before()
            in_parts(length, lambda block: self._made(k, attention, tiles, held, block))

    def _attend_alone(
        self,
        k: KernelBuilder,
        attention: AttentionType,
        warps: int,
        held: SharedView,
        registers: tuple[Rows, ...],
        length: Value,
        allowed: Value,
        write: WriteHead,
    ) -> None:
        """Write what the block's head attends to, at a position that is in range, as `allowed` says."""
        position = length - 1
        token, tiles = self.token(attention.head_dim, 1, warps), self.newest(k, attention, warps)
        first, kv_head = tiles.first(k), k.ctaid.x // attention.group
        _, keys, values = attention.places(k, first, first)
        row = row_of(position, attention.kept)
        block = BlockToken(k.ctaid.x, 1, kv_head, position, row, k.ctaid.x % attention.group == 0)
        share = token.begin(k, block)
        before = tiles.begin(k, registers, keys, values, position, attention.scores.device_first(k, length))
        k.wait_for_launch_before()
        token.finish(k, block, share, token.fetch(k, share), held)
        k.barrier()
        query, key, value = (token.row(k, held, slot, first) for slot in range(3))
        scores = attention.scores_of(k, k.ctaid.x, 1, length)
        part = tiles.softmax_with(k, tiles.row(k, query), before, key, value, scores)
        write(tiles, tiles.merge(k, part), allowed)

    def _made(
        self, k: KernelBuilder, attention: AttentionType, tiles: GroupTiles, held: SharedView, block: BlockPart
    ) -> tuple[SharedPart, Locate]:
        """The block of the last part has the newest row in shared memory."""
        position, newest = block.length - 1, block.part == block.parts - 1
        token = self.token(attention.head_dim, tiles.heads, tiles.warps)
        stores = newest & (block.first == block.kv_head * attention.group)
        row = row_of(position, attention.kept)
        token.prepare(k, BlockToken(block.first, block.heads, block.kv_head, position, row, stores, newest), held)
        k.barrier()
        own = tiles.first(k)
        key, value = (token.row(k, held, slot, own) for slot in (token.key, token.key + 1))
        caches = [cache.at(block.kv_head, 0, own) for cache in (k.arg.k_cache, k.arg.v_cache)]

        def locate(start: Value) -> tuple[Load, Load]:
            keys, values = (
                self.rows_before(k, cache, attention, start, position, row)
                for cache, row in zip(caches, (key, value), strict=True)
            )
            return keys, values

        return token.row(k, held, 0, own), locate

    def rows_before(
        self, k: KernelBuilder, cache: GlobalArray, attention: AttentionType, start: Value, position: Value, newest: SharedPart
    ) -> Load:
        """Rows of the tile from position `start` on: those before `position` from the cache, others are `newest`."""

        def load(row: Value, places: range, width: int) -> list[Value]:
            at = start + row
            before = row_of(k.min(at, position - 1), attention.kept)
            values = cached_rows(k, cache, attention.head_dim)(before, places, width)
            for number, place in enumerate(places):
                k.load_where(at >= position, newest[place], values[number * width : (number + 1) * width])
            return values

        return load

    def given(self, attention: AttentionType, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """In float64, and how far off q, k and v may be: `q_off`, `k_off` and `v_off`."""
        position, scatter = int(np.asarray(arguments["position"]).reshape(())), self.scatter(attention)
        exact, off = scatter.exact(arguments)
        caches = scatter.kept({name: arguments[name].astype(np.float64) for name in CACHES}, exact, arguments)
        bounds = {f"{name}_off": off[name] for name in scatter.tokens}
        length = np.array([min(position, attention.max_len) + 1])
        return {**arguments, "q": exact["q"], **caches, **bounds, "length": length}

    def off(self, attention: AttentionType, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """Because queries and the last key are. The last value is off, too, where it has a bias: by a unit, as if its weight
        were."""
        keys = given["k_cache"][:, attention.seen_rows(length)].repeat(attention.group, axis=0)
        last = given["k_off"].repeat(attention.group, axis=0)
        scale = UNIT / attention.scores.factor(attention.head_dim)
        units: NDArray[np.float64] = np.einsum("hd,hld->hl", given["q_off"], np.abs(keys)) / scale
        units[:, -1] += np.einsum("hd,hd->h", np.abs(given["q"]) + given["q_off"], last) / scale + self.bias
        return units

    def kept(self, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        return {name: given[name] for name in CACHES}

    def kept_bounds(self, attention: AttentionType, arguments: Mapping[str, Any]) -> dict[str, Any]:
        bounds = self.scatter(attention).tolerance(**arguments)
        return {name: bounds[name] for name in CACHES}

    def work(self, attention: AttentionType) -> Work:
        """That of the scatter without what it would leave to attention: rotated queries are neither written nor read, rotated
        keys not written back, and the row that is written not read."""
        scatter = self.scatter(attention).work()
        rows = 2 * attention.heads + (4 if self.bias else 3) * attention.kv_heads
        return Work(scatter.flops, scatter.bytes - F32.bytes * rows * attention.head_dim)

    def inputs(self, attention: AttentionType, plain: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """What stands in the caches at the position and after it is so large that a result with any of it is far off."""
        length = plain.pop("length")
        position, before = length - 1, np.zeros(attention.rows, bool)
        before[attention.seen_rows(int(length[0]))] = True
        before[row_of(int(position[0]), attention.kept)] = False
        for name in CACHES:
            plain[name][:, ~before] = 1e9
        rotated = self.scatter(attention).inputs(rng)
        return {**{name: rotated[name] for name in rotated if name not in plain}, **plain, "position": position}


ROPE_FUSED = (*(RopeFused(neox, bias) for neox in (False, True) for bias in (False, True)), RopeFused(True, normed=True))
"""Every style that a kernel is registered for."""


def _read_early(argument: Argument) -> Argument:
    """The argument as one that the kernel may read before it waits."""
    if not isinstance(argument, Array):
        return argument
    return replace(argument, constant=True) if argument.direction == "in" else replace(argument, settled=True)
