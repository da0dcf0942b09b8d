"""Attention of one new token over the cache of a single sequence in one launch, with or without digits of the result: a short
sequence as incremental_attention does it, the positions of a long one dealt out to many blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, SharedPart, SharedView
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.attention_digits import IncrementalAttentionDigits
from ptxgen.kernels.attention.group_tiles import GroupTiles, Load, Locate
from ptxgen.kernels.attention.incremental_attention import IncrementalAttention
from ptxgen.kernels.attention.kv_type import KV_TYPES
from ptxgen.kernels.attention.merge import Merge, PartArrays, Staged, merged_bound
from ptxgen.kernels.attention.split import (
    HANDED,
    MOST_SPLITS,
    Split,
    part_bounds,
    partials,
    require_split,
    softmax_part,
)
from ptxgen.kernels.attention.suited import TOKEN_LEAST, TOKEN_RESIDENT, TOKEN_SHORT, TOKEN_SPLITS
from ptxgen.kernels.quantize.quantize import write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

MOST_SUMS = 24 << 10  # bytes that the sums of a block's warps may take of shared memory


@register(indirect=(True,))
@dataclass(frozen=True)
class GroupedAttention(IncrementalAttention):
    """incremental_attention_indirect for short and for long sequences.

    out, q: f32[heads, head_dim]; k_cache, v_cache: f32[kv_heads, max_len, head_dim]; length: u32[1], 1..max_len: any other
    writes nothing. Up to `short` positions it has the bits of incremental_attention, and a block a head. More are dealt out as
    told in `Split` of paged_attention, in which query heads of a group share each read of the cache; the last block puts the
    parts together. These stand in peaks, totals: f32[heads, splits], weighted: f32[heads, splits, head_dim]; counters:
    u32[kv_heads * blocks], zeros before the launch and zeros again after it: `blocks` share the heads of a group. A
    multiprocessor must be able to hold `resident` blocks.
    """

    # Before sm_90 the assembler writes all that has a shuffle twice, the second time for warps that are apart, which never are.
    most_code = 112 * 1024
    splits: int = field(default=TOKEN_SPLITS, kw_only=True)
    least: int = field(default=TOKEN_LEAST, kw_only=True)
    short: int = field(default=TOKEN_SHORT, kw_only=True)
    resident: int = field(default=TOKEN_RESIDENT, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "splits", low=2, high=MOST_SPLITS)
        require(self, "resident", high=8)
        require_split(self, self.split)
        require(self, "short")
        if self.short < self.least:
            raise ArgumentError(f"{self.name}: short must be at least least ({self.least}), got {self.short}")

    @property
    def name(self) -> str:
        return f"grouped_attention{'_indirect' if self.indirect else ''}"

    @property
    def scratch(self) -> tuple[str, ...]:
        return (*HANDED, "counters")

    @property
    def split(self) -> Split:
        """How the positions of a long sequence are dealt out."""
        return Split(self.splits, self.least)

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def blocks(self) -> int:
        """Blocks that share the heads of a group."""
        room = MOST_SUMS // (F32.bytes * self.warps * self.head_dim)
        return -(-self.group // min(GroupTiles.most_heads(self.head_dim, self.warps), room))

    @property
    def group_tiles(self) -> GroupTiles:
        """How a block goes over a part."""
        return GroupTiles(self.head_dim, -(-self.group // self.blocks), self.warps)

    def signature(self) -> Signature:
        handed = partials(1, self.heads, self.splits, self.head_dim, "out")
        return {
            **super().signature(),
            **{
                name: Array(F32, array.shape[1:], "out", partial=True)
                for name, array in handed.items()
                if isinstance(array, Array)
            },
            "counters": update(U32, self.kv_heads * self.blocks, zeros=True),
        }

    def launch(self) -> LaunchConfig:
        blocks = max(self.heads, self.kv_heads * self.blocks * self.splits)
        return LaunchConfig(blocks, self.warps * WARP_SIZE, resident=self.resident)

    def emit(self, k: KernelBuilder) -> None:
        allowed, length = self.length(k)
        with k.when(length <= self.short):
            self._attend_to_all(k, length, allowed)
        with k.otherwise():
            self._attend_in_parts(k, self.group_tiles.room(k), length)

    def _attend_to_all(self, k: KernelBuilder, length: Value, allowed: Value) -> None:
        with k.when(k.ctaid.x < self.heads):
            q, keys, values = self.places(k, self.tiles.first(k))
            self.write(k, self.attended(k, self.tiles.row(k, q), keys, values, length), allowed)

    def _attend_in_parts(self, k: KernelBuilder, held: SharedView, length: Value) -> None:
        """held: where `_sources` may put queries."""
        size = self.split.device_size(length)
        part, count = k.ctaid.x // (self.kv_heads * self.blocks), (length + (size - 1)) // size
        with k.when(part < count):
            self._attend_to_part(k, held, part, count, size, length)

    def _attend_to_part(
        self, k: KernelBuilder, held: SharedView, part: Value, count: Value, size: Value, length: Value
    ) -> None:  # fmt: skip
        """Leave the part, one of two or more; if that was the last, write what the block's heads attend to."""
        tiles, own = self.group_tiles, k.ctaid.x % (self.kv_heads * self.blocks)
        kv_head, number = own // self.blocks, own % self.blocks * tiles.heads
        first, heads = kv_head * self.group + number, k.min(self.group - number, tiles.heads)
        stop = k.shuffle(k.min(part * size + size, length), 0)
        queries, locate = self._sources(k, held, kv_head, first, heads, part, count, length)
        found = tiles.softmax(k, queries, locate, part * size, stop, self.scale)
        merged, weighted = tiles.merge(k, found)
        for head, d, value in tiles.added(k, weighted):
            with k.when(head < heads):
                k.store(k.arg.weighted[first + head, part, d], value)
        for peak, total, head, mine in merged:
            with k.when((head < heads) & mine):
                k.store(k.arg.peaks[first + head, part], peak)
                k.store(k.arg.totals[first + head, part], total)
        with k.when(k.last_block(k.arg.counters[own], count)):
            staged = Staged.of(k, tiles.heads, self.head_dim)
            parts = PartArrays(k.arg.peaks.at(first, 0), k.arg.totals.at(first, 0), k.arg.weighted.at(first, 0, 0), self.splits)
            Merge(self.head_dim, tiles.heads, self.warps).put_together(k, parts, count, heads, staged)
            k.barrier()
            self.finish(k, first, staged.runs(k, heads))

    def finish(
        self, k: KernelBuilder, first: Value, runs: Iterator[tuple[Value, tuple[Value, ...], Value]]
    ) -> None:  # fmt: skip
        """Write the runs (see Staged) of heads from `first` on."""
        for place, values, live in runs:
            self._write_run(k, first, place, values, live)

    def _write_run(self, k: KernelBuilder, first: Value, place: Value, values: tuple[Value, ...], live: Value) -> None:
        with k.when(live):
            k.store(k.arg.out.at(first, 0)[place], values)

    def _sources(
        self, k: KernelBuilder, held: SharedView, kv_head: Value, first: Value, heads: Value, part: Value, count: Value,
        length: Value,
    ) -> tuple[SharedPart, Locate]:  # fmt: skip
        """The queries, and where keys and values are, as GroupTiles.softmax wants them. All threads must come here."""
        return self.group_tiles.queries(k, k.arg.q.at(first, 0), heads, held), self._locate(k, kv_head)

    def _locate(self, k: KernelBuilder, kv_head: Value) -> Locate:
        caches = [cache.at(kv_head, 0, 0) for cache in (k.arg.k_cache, k.arg.v_cache)]

        def locate(start: Value) -> tuple[Load, Load]:
            first = start * self.head_dim + self.group_tiles.first(k)
            keys, values = (self._load(k, cache.at(first)) for cache in caches)
            return keys, values

        return locate

    def _load(self, k: KernelBuilder, rows: GlobalArray) -> Load:
        def load(row: Value, places: range, width: int) -> list[Value]:
            moved = [rows.at(row * self.head_dim)]
            return [value for place in places for value in KV_TYPES["f32"].load(k, moved, place, width)]

        return load

    def _is_long(self, length: int) -> bool:
        return length > self.short

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        length = self.given_length(arguments)
        handed = {name: arguments[name].astype(np.float64) for name in HANDED}
        if self._is_long(length):
            scores, values = self.exact(arguments, length)
            for number, at in enumerate(self.split.slices(length)):
                for name, exact in softmax_part(scores[:, at], values[:, at]).items():
                    handed[name][:, number] = exact
        return {**super().reference(**arguments), **handed, "counters": np.zeros_like(arguments["counters"])}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """See `bound` and `part_bounds`."""
        length = self.given_length(arguments)
        handed = {name: np.zeros(arguments[name].shape) for name in HANDED}
        if self._is_long(length):
            scores, values = self.exact(arguments, length)
            errors = self._errors(arguments, length)
            for number, at in enumerate(self.split.slices(length)):
                for name, bound in part_bounds(self.group_tiles, scores[:, at], errors[:, at], values[:, at]).items():
                    handed[name][:, number] = bound
        return {**super().tolerance(**arguments), **handed, "counters": 0.0}

    def _errors(self, arguments: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """What scores of a long sequence may be off by, [heads, length], in units of 2^-24."""
        return self.group_tiles.score_units * self.exact(arguments, length, magnitude=True)[0]

    def bound(self, arguments: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        """That of incremental_attention; of a long sequence see `merged_bound`."""
        if not self._is_long(length):
            return super().bound(arguments, length)
        scores, values = self.exact(arguments, length)
        return merged_bound(self.group_tiles, self.split.size(length), scores, self._errors(arguments, length), values)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=6, kv_heads=1, head_dim=64, max_len=200, splits=3, least=32, short=32)
        yield cls(**fixed, heads=1, kv_heads=1, head_dim=32, max_len=1, splits=2, least=32, short=32)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """A sequence that is long, where there is room for one."""
        given = super().inputs(rng)
        while self.max_len > self.short and not self._is_long(int(given["length"][0])):
            given = super().inputs(rng)
        signature = self.signature()
        arrays = {name: signature[name] for name in HANDED}
        return {
            **given,
            **{name: np.zeros(array.shape, np.float32) for name, array in arrays.items() if isinstance(array, Array)},
            "counters": np.zeros(self.kv_heads * self.blocks, np.uint32),
        }


@register(indirect=(True,))
@dataclass(frozen=True)
class GroupedAttentionDigits(GroupedAttention, IncrementalAttentionDigits):
    """grouped_attention_indirect and the int8 digits of its out in one launch, bit for bit.

    All arguments as there, and with size = heads * head_dim, digits: s8[1, digits, size], scales: f32[1, size / 32], sums:
    s32[1, size / 32]: what q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of out as one row.
    """

    @property
    def name(self) -> str:
        return f"grouped_attention_digits{'_indirect' if self.indirect else ''}"

    def finish(
        self, k: KernelBuilder, first: Value, runs: Iterator[tuple[Value, tuple[Value, ...], Value]]
    ) -> None:  # fmt: skip
        for place, values, live in runs:
            self._write_run(k, first, place, values, live)
            write_digits(k, self.digits, 0, first * self.head_dim + place, values, live)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=2, kv_heads=1, head_dim=128, max_len=130, splits=4, least=32, short=64, digits=2)
        yield cls(**fixed, heads=1, kv_heads=1, head_dim=32, max_len=1, splits=2, least=32, short=32, digits=1)
