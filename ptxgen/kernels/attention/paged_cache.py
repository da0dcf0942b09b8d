"""The paged KV cache of a layer, and the rows of a step that read and write it: arguments, how a kernel finds a row's page, how
NumPy reads what is cached. How values are held is said in kv_type.py.

A step has `rows` rows (tokens). Row r belongs to the sequence in slot[r] and stands at position[r] of it; it sees positions
0..position[r] of its slot. Position p of slot s stands in place p % page_len of page tables[s, p / page_len]. Slots whose
sequences begin alike may share pages.

A row is idle if its position is max_len or more or its slot is `slots` or more. It reads and writes nothing, and what kernels
give it instead is said by each. A page number of `pages` or more is followed by no kernel: a row that needs it is idle, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Direction, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.attention_type import LONGEST
from ptxgen.kernels.attention.kv_type import KvType, kv_type
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring
from ptxgen.kernels.shape import MOST_ROWS, ValueWidth, require, require_head_dim
from ptxgen.target import WARP_SIZE
from ptxgen.types import U32

TILE = WARP_SIZE
"""Positions that kernels read together; a page has a whole number of them, so that these stand side by side."""


class PagePlace(NamedTuple):
    """Where a row of a step stands, in registers that are the same in all threads that ask for the same row. A row is not idle
    if its slot is known, its length is not 0, and the pages that it needs exist."""

    known: Value
    """Whether the argument holds a slot below `slots`."""
    slot: Value
    """Below `slots`, whatever the argument holds."""
    length: Value
    """The positions that it sees: one more than its own, or 0 if that is out of range."""


def length_of(k: KernelBuilder, position: Value, max_len: int) -> Value:
    """The positions that a row at this position sees, 0 if it is idle."""
    return k.select(position < max_len, position + 1, 0)


@dataclass(frozen=True)
class PagedKernel(ValueWidth, KernelType):
    """A kernel on the paged cache of a layer, for the rows of a step.

    k_cache, v_cache: kv[pages, kv_heads, page_len, width], kv = f32, f16 or, for q8_0, s8 with k_scales, v_scales: f16[pages,
    kv_heads, page_len, width / 32], where the width of K is head_dim and that of V is value_dim, head_dim unless it is given;
    tables: u32[slots, max_len / page_len, rounded up]; slot, position: u32[rows]. heads is a multiple of kv_heads, page_len of
    32, max_len of page_len; widths: see require_head_dim, for q8_0 multiples of 32.
    """

    family: ClassVar[str] = "attention"
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    page_len: int
    pages: int
    slots: int
    max_len: int
    kv_type: str = field(kw_only=True)
    value_dim: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require(self, "rows", high=MOST_ROWS)
        require(self, "heads", "kv_heads", "pages", "slots")
        require_head_dim(self, self.head_dim, self.value_dim)
        require(self, "page_len", low=TILE, high=LONGEST, multiple=TILE)
        require(self, "max_len", low=self.page_len, high=LONGEST, multiple=TILE)
        if self.heads % self.kv_heads:
            raise ArgumentError(f"{self.name}: heads must be a multiple of kv_heads ({self.kv_heads}), got {self.heads}")
        for name in ("head_dim", "value_dim"):
            size = getattr(self, name)
            if size is not None and size % self.kv.together:
                multiple = f"a multiple of {self.kv.together}"
                raise ArgumentError(f"{self.name}: a cache of {self.kv_type} needs a {name} that is {multiple}, got {size}")

    @property
    def kv(self) -> KvType:
        """How the cache holds values."""
        return kv_type(self.name, self.kv_type)

    @property
    def entries(self) -> int:
        """Pages of a sequence, of which the last may be longer than it."""
        return -(-self.max_len // self.page_len)

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def scores(self) -> Scoring:
        """Which positions a row sees, and how."""
        return PLAIN_SCORES

    def width(self, tensor: str) -> int:
        """Values of a row of `k` or `v`."""
        return self.value_width if tensor == "v" else self.head_dim

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of K and one of V."""
        return self.kv.row_bytes(self.head_dim) + self.kv.row_bytes(self.value_width)

    # Arguments

    def caches(self, direction: Direction) -> Signature:
        """The arrays of keys and of values, for signatures."""
        rows = (self.pages, self.kv_heads, self.page_len)
        return {
            f"{tensor}_{part.suffix}": Array(part.dtype, (*rows, self.width(tensor) // part.values), direction, partial=True)
            for tensor in ("k", "v")
            for part in self.kv.parts
        }

    def places(self) -> Signature:
        """The page tables and the rows' slots and positions, for signatures."""
        return {
            "tables": read(U32, self.slots, self.entries, align=4, partial=True, constant=True),
            "slot": read(U32, self.rows, align=4, constant=True),
            "position": read(U32, self.rows, align=4, constant=True),
        }

    # On the device

    def place(self, k: KernelBuilder, row: Value) -> PagePlace:
        """Where row number `row` stands."""
        slot, position = k.load(k.arg.slot[row]), k.load(k.arg.position[row])
        return PagePlace(slot < self.slots, k.min(slot, self.slots - 1), length_of(k, position, self.max_len))

    def page(self, k: KernelBuilder, slot: Value, position: Value) -> Value:
        """The number of the page of a position below max_len. It may be `pages` or more: such a page must not be followed."""
        number: Value = k.load(k.arg.tables[slot, position // self.page_len])
        return number

    def cached(
        self, k: KernelBuilder, tensor: str, page: Value, head: Value, place: Value, first: Value | int
    ) -> list[GlobalArray]:
        """Value `first` of the row at `place` of a page below `pages`, of key/value head `head`, in each part of the cache of
        `tensor` (`k` or `v`): what KvType.load takes. `moved` goes on from there to other rows of the page."""
        row = (page * self.kv_heads + head) * self.page_len + place
        return [
            getattr(k.arg, f"{tensor}_{part.suffix}")
            .at(0, 0, 0, 0)
            .at(row * (self.width(tensor) // part.values) + first // part.values)
            for part in self.kv.parts
        ]

    def moved(self, tensor: str, parts: Sequence[GlobalArray], rows: Value) -> list[GlobalArray]:
        """The same values of the row of `tensor` that stands `rows` rows after in the page."""
        width = self.width(tensor)
        return [array.at(rows * (width // part.values)) for array, part in zip(parts, self.kv.parts, strict=True)]

    # In NumPy

    def standing(self, arguments: Mapping[str, Any], row: int) -> NDArray[np.int64]:
        """The page and the place in it, [positions, 2], of each position up to the row's own; none if its slot or position is
        out of range. A page may be `pages` or more."""
        slot, position = int(arguments["slot"][row]), int(arguments["position"][row])
        if slot >= self.slots or position >= self.max_len:
            return np.zeros((0, 2), np.int64)
        positions = np.arange(position + 1)
        pages = arguments["tables"][slot].astype(np.int64)[positions // self.page_len]
        return np.stack([pages, positions % self.page_len], axis=1)

    def seen(self, arguments: Mapping[str, Any], row: int) -> NDArray[np.int64]:
        """As `standing`: the positions that the row sees, none if it is idle."""
        found = self.standing(arguments, row)
        found = found[self.scores.first(len(found)) :]
        return found if (found[:, 0] < self.pages).all() else found[:0]

    def distances(self, arguments: Mapping[str, Any], row: int, where: NDArray[np.int64]) -> NDArray[np.int64]:
        """How far before the row these positions of its slot are, whose pages the slot has once."""
        entries = np.argmax(arguments["tables"][int(arguments["slot"][row])] == where[:, :1], axis=1)
        distances: NDArray[np.int64] = int(arguments["position"][row]) - (entries * self.page_len + where[:, 1])
        return distances

    def values(self, arguments: Mapping[str, Any], tensor: str, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the cache of `tensor` (`k` or `v`) holds there, exactly: f64[kv_heads, positions, width]. where: pages and
        places, [positions, 2], as `seen` gives them."""
        arrays = [arguments[f"{tensor}_{part.suffix}"] for part in self.kv.parts]
        return self.kv.decode([array[where[:, 0], :, where[:, 1]].swapaxes(0, 1) for array in arrays])

    def exact(
        self, arguments: Mapping[str, Any], row: int, where: NDArray[np.int64], *, magnitude: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores [heads, positions] and values [heads, positions, value_dim], in float64; with `magnitude` of the absolute
        numbers, without cap and ALiBi."""
        q = arguments["q"][row].astype(np.float64)
        keys, values = (self.values(arguments, tensor, where).repeat(self.group, axis=0) for tensor in ("k", "v"))
        if magnitude:
            products = np.einsum("hd,hld->hl", np.abs(q), np.abs(keys))
            return products * self.scores.factor(self.head_dim), np.abs(values)
        products, distances = np.einsum("hd,hld->hl", q, keys), self.distances(arguments, row, where)
        return self.scores.exact(products, self.head_dim, distances), values

    def filled(self, rng: np.random.Generator) -> dict[str, Any]:
        """Random caches and places for tests. The rows of a slot stand one after another, as those of a prompt do; of three
        rows or more the last is idle. Slots have pages of their own, in no order, as long as there are any: a row for which
        none is left is idle. All that no row sees holds NaN, and tables hold the number of no page there."""
        places = self._random_places(rng)
        caches: dict[str, NDArray[Any]] = {}
        for tensor in ("k", "v"):
            x = rng.normal(size=(self.pages, self.kv_heads, self.page_len, self.width(tensor))).astype(np.float32)
            unseen = np.ones((self.pages, self.page_len), bool)
            for row in range(self.rows):
                unseen[tuple(self.seen(places, row).T)] = False
            x[np.broadcast_to(unseen[:, None], x.shape[:3])] = np.nan
            for part, array in zip(self.kv.parts, self.kv.encode(x), strict=True):
                caches[f"{tensor}_{part.suffix}"] = array
        return {**caches, **places}

    def _random_places(self, rng: np.random.Generator) -> dict[str, Any]:
        nowhere = 2**32 - 1
        tables = np.full((self.slots, self.entries), nowhere, np.uint32)
        slot = (np.arange(self.rows) % self.slots).astype(np.uint32)
        position = np.full(self.rows, nowhere, np.uint32)
        free = rng.permutation(self.pages).astype(np.uint32)
        for number in range(min(self.slots, self.rows)):
            rows = np.flatnonzero(slot == number)
            end = int(rng.integers(min(len(rows), self.max_len), self.max_len + 1))
            used, free = np.split(free, [-(-end // self.page_len)])
            tables[number, : len(used)] = used
            end = min(end, len(used) * self.page_len)
            rows = rows[:end]
            position[rows] = np.arange(end - len(rows), end)
        if self.rows > 2:
            position[-1] = self.max_len
        return {"tables": tables, "slot": slot, "position": position}
