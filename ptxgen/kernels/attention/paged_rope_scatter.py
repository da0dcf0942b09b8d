"""What the queries, keys and values of the rows of a step go through between their matrices and attention over a paged cache,
in one launch: what rope_scatter.py does for one token, with the cache as f32, f16 or q8_0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.kv_type import LARGEST_CODE, SCALED
from ptxgen.kernels.attention.paged_cache import PagedKernel
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.quantize.quantize import magnitude
from ptxgen.kernels.registry import register
from ptxgen.kernels.rope.rope import Pair, store_pairs
from ptxgen.kernels.rope.table import rope_table
from ptxgen.kernels.shape import require
from ptxgen.types import F32, S32, U16, U32

THREADS = 128
TENSORS = ("q", "k", "v")


@register(neox=(False, True), bias=(False, True))
@dataclass(frozen=True)
class PagedRopeScatter(PagedKernel):
    """Rotate the queries and keys of rows, in place, and write their keys and values into the paged cache.

    q: f32[rows, heads, head_dim]; k: f32[rows, kv_heads, head_dim]; v: f32[rows, kv_heads, value_dim]; table: f32[max_len,
    rotary_dim / 2, 2]; q_bias, k_bias, v_bias, `neox` and rotary_dim as in rope_scatter, and a row of q, k and v has the bits
    that rope_scatter gives it. The cache, slot and position as in PagedKernel; what stands in the cache for a row of k or v is
    told in kv_type.py. No two rows may have the same place. Of a row that is idle, or whose own position has no page, nothing
    at all is changed; whether the pages before exist is not looked at.
    """

    waits_inside = True
    rotary_dim: int = 0
    neox: bool = field(kw_only=True, metadata=HIDDEN)
    bias: bool = field(kw_only=True, metadata=HIDDEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotary_dim == 0:
            object.__setattr__(self, "rotary_dim", self.head_dim)
        require(self, "rotary_dim", low=2, high=self.head_dim, multiple=2)
        if self.widest // (2 * self._pairs) > THREADS:
            wanted = "a rotary_dim that is a multiple of 4"
            raise ArgumentError(f"{self.name}: heads of {self.widest} values need {wanted}, got {self.rotary_dim}")

    @property
    def name(self) -> str:
        return f"{'bias_' if self.bias else ''}paged_rope{'_neox' if self.neox else ''}_scatter"

    @property
    def single(self) -> RopeScatter:
        """The kernel of one row, with an f32 cache of its own."""
        sizes = self.heads, self.kv_heads, self.head_dim, self.max_len, self.rotary_dim
        return RopeScatter(self.neox, self.bias, *sizes, value_dim=self.value_dim)

    def signature(self) -> Signature:
        single = self.single.signature()
        tensors: Signature = {
            name: (update if name != "v" or self.bias else read)(F32, self.rows, heads, self.width(name))
            for name, heads in self.single.tokens.items()
        }
        biases = {name: argument for name, argument in single.items() if name.endswith("_bias")}
        return {**tensors, **biases, "table": single["table"], **self.caches("inout"), **self.places()}

    @property
    def _pairs(self) -> int:
        """Pairs of a thread: two, for wide loads, unless only one of them could be turned."""
        return 1 if self.rotary_dim % 4 else 2

    def _share(self, name: str) -> int:
        """Threads that have a head of these."""
        return self.width(name) // (2 * self._pairs)

    @property
    def _block_heads(self) -> int:
        """Heads of a block: it has whole ones, because the scales of q8_0 need neighbours."""
        return THREADS // self._share("k")

    @property
    def _blocks(self) -> tuple[int, int]:
        """Of a row: those of heads as wide as keys, and those of values alone, where these have another width."""
        total = sum(self.single.tokens.values())
        if self.value_width == self.head_dim:
            return -(-total // self._block_heads), 0
        return -(-(total - self.kv_heads) // self._block_heads), -(-self.kv_heads // (THREADS // self._share("v")))

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(sum(self._blocks), self.rows), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        row = k.ctaid.y
        place = self.place(k, row)
        position = k.max(place.length, 1) - 1
        page = self.page(k, place.slot, position)
        k.wait_for_launch_before()
        with k.when(place.known & (place.length > 0)):
            self._write(k, row, position, page)

    def _write(self, k: KernelBuilder, row: Value, position: Value, page: Value) -> None:
        """A thread takes pairs of values of a head: the heads of q, then of k, then of v. Nothing but its stores waits for the
        number of the page."""
        head, i, live = self._own(k)

        def token(name: str, head: Value, first: Value) -> GlobalArray:
            array: GlobalArray = getattr(k.arg, name).at(row, head, first)
            return array

        def keep(name: str, head: Value, first: Value, distance: int, pairs: Sequence[Pair]) -> None:
            if self.kv.together == 1:
                (cached,) = self.cached(k, name, page, head, position % self.page_len, first)
                type = cached.dtype
                store_pairs(k, cached, distance, [(k.convert(a, type), k.convert(b, type)) for a, b in pairs])

        pairs = replace(self.single.pairs, count=self._pairs, stored=lambda: k.when(page < self.pages))
        with k.when(live):
            pairs.write(k, head, i, position, token, keep)
        if self.kv.together > 1:
            with k.when(page < self.pages):
                k.barrier()  # the block has whole heads, so what it reads now it wrote itself
                self._write_codes(k, row, head, i * 2, live, page, position % self.page_len)

    def _own(self, k: KernelBuilder) -> tuple[Value, Value, Value]:
        """The thread's head and its first pair there, and whether it has any."""
        share, every = self._share("k"), sum(self.single.tokens.values())
        number, i = k.tid.x // share, k.tid.x % share * self._pairs
        head = k.ctaid.x * self._block_heads + number
        first, apart = self._blocks
        if not apart:
            return head, i, (number < self._block_heads) & (head < every)
        before, share = every - self.kv_heads, self._share("v")
        head = k.select((number < self._block_heads) & (head < before), head, every)
        number, place = k.tid.x // share, k.tid.x % share * self._pairs
        value = (k.ctaid.x - first) * (THREADS // share) + number
        value = k.select((number < THREADS // share) & (value < self.kv_heads), value + before, every)
        of_values = k.ctaid.x >= first
        head = k.select(of_values, value, head)
        return head, k.select(of_values, place, i), head < every

    def _write_codes(
        self, k: KernelBuilder, row: Value, head: Value, first: Value, live: Value, page: Value, place: Value
    ) -> None:
        """Codes and scales of q8_0, of the keys and values as they are now: a thread takes as many values side by side as its
        pairs have, so that 16 or 8 lanes have the 32 of a scale."""
        number = head - self.heads
        of = {
            "k": (live & (head >= self.heads) & (number < self.kv_heads), number),
            "v": (live & (head >= self.heads + self.kv_heads), number - self.kv_heads),
        }
        count = 2 * self._pairs
        values = [k.f32(0.0) for _ in range(count)]
        for tensor, (inside, kv_head) in of.items():
            with k.when(inside):
                for held, value in zip(values, k.load_vector(getattr(k.arg, tensor)[row, kv_head, first], count), strict=True):
                    held @= value
        magnitudes = [magnitude(k, value) for value in values]  # as bits: NaN is largest
        peak = k.warp_max(reduce(k.max, magnitudes), width=SCALED // count)
        scale = k.bits(peak, F32) / float(LARGEST_CODE)
        inverse = 1.0 / scale
        inverse = k.select(inverse == float("inf"), 0.0, inverse)
        word: Value | int = 0
        for at, value in enumerate(values):
            word = word | (k.bits(_nearest(k, value * inverse), U32) & 0xFF) << 8 * at
        for tensor, (inside, kv_head) in of.items():
            with k.when(inside):
                codes, scales = self.cached(k, tensor, page, kv_head, place, first)
                k.store(replace(codes[0], dtype=U16 if count == 2 else U32), word)
                with k.when((k.lane & (SCALED // count - 1)) == 0):
                    k.store(scales[0], k.f16(scale))

    def _live(self, arguments: Mapping[str, Any]) -> Iterator[tuple[int, tuple[int, int] | None, dict[str, Any]]]:
        """Of each row its number, the page and the place that it goes to, None if it is idle, and the arguments of
        rope_scatter."""
        for row in range(self.rows):
            where = self.standing(arguments, row)[-1:]
            live = len(where) > 0 and where[0, 0] < self.pages
            position = arguments["position"][row : row + 1] if live else np.array([self.max_len], np.uint32)
            kept = {name: array for name, array in arguments.items() if name == "table" or name.endswith("_bias")}
            token = {name: arguments[name][row] for name in TENSORS}
            yield row, (int(where[0, 0]), int(where[0, 1])) if live else None, {**kept, **token, "position": position}

    def _each(self, arguments: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """What q, k, v and the parts of the cache are afterwards, and how far off that may be."""
        names = [*TENSORS, *self.caches("inout")]
        values = {name: arguments[name].astype(np.float64) for name in names}
        bounds = {name: np.zeros(array.shape) for name, array in values.items()}
        for row, place, token in self._live(arguments):
            exact, off = self.single.exact(token)
            for name in TENSORS:
                values[name][row], bounds[name][row] = exact[name], off[name]
            for tensor in ("k", "v") if place else ():
                for part, (value, bound) in zip(self.kv.parts, self.kv.stored(exact[tensor], off[tensor]), strict=True):
                    page, at = place or (0, 0)
                    values[f"{tensor}_{part.suffix}"][page, :, at] = value
                    bounds[f"{tensor}_{part.suffix}"][page, :, at] = bound
        return self.single.written(values), self.single.written(bounds)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return self._each(arguments)[0]

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """A value in the cache is off as its source is, and by how the cache rounds it; all others there are exact."""
        return self._each(arguments)[1]

    def work(self) -> Work:
        single = self.single.work()
        of_f32 = F32.bytes * (self.head_dim + self.value_width)
        bytes = single.bytes + self.kv_heads * (self.row_bytes - of_f32) + 2 * U32.bytes
        return Work(flops=self.rows * single.flops, bytes=self.rows * bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        pool: dict[str, Any] = {"page_len": 32, "pages": 5, "slots": 2, "max_len": 96}
        yield cls(**fixed, rows=5, heads=9, kv_heads=3, head_dim=64, **pool, kv_type="f16")
        yield cls(**fixed, rows=3, heads=3, kv_heads=1, head_dim=96, **pool, kv_type="q8_0", rotary_dim=20)
        least: dict[str, Any] = {"page_len": 32, "pages": 1, "slots": 1, "max_len": 32}
        yield cls(**fixed, rows=1, heads=1, kv_heads=1, head_dim=32, **least, kv_type="f32", rotary_dim=2)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shapes = {
            name: argument.shape
            for name, argument in self.signature().items()
            if isinstance(argument, Array) and (name in TENSORS or name.endswith("_bias"))
        }
        filled = self.filled(rng)
        return {
            **{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
            "table": rope_table(self.max_len, self.rotary_dim, 1e5),
            **filled,
            **{name: np.nan_to_num(filled[name], nan=7.0) for name in self.caches("inout")},
        }


def _nearest(k: KernelBuilder, x: Value) -> Value:
    """The nearest integer, halves away from zero, as s32; 0 of NaN."""
    whole = k.cvt(x, result=F32, rnd="rzi")
    rest = x - whole
    integer: Value = k.cvt(whole + k.cvt(rest + rest, result=F32, rnd="rzi"), result=S32, rnd="rzi")
    return integer
