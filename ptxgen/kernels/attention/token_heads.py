"""A token's queries, and its key and value, as attention reads them, made by the block that reads them: what rope_scatter.py
does in a launch before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedPart, SharedView
from ptxgen.dsl.value import Value
from ptxgen.kernels.norm.per_head_rmsnorm import normed
from ptxgen.kernels.rope.rope import Pair, load_pair, load_pairs, neighbours, store_pair, store_pairs, turned
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32

PAIRS = 2  # of a thread, for wide loads


@dataclass(frozen=True)
class BlockToken:
    """What a block wants of a token. first: its first query head, of `heads`; kv_head: the key/value head that these share;
    position: where the token stands, row: in the caches; stores: whether the block is the one to write key and value into the
    caches; newest: whether it wants these at all, None if every block does."""

    first: Value
    heads: Value | int
    kv_head: Value
    position: Value
    row: Value
    stores: Value
    newest: Value | None = None


@dataclass(frozen=True)
class Share:
    """A thread's share of a head, and what is constant for it: the cosine and the sine of each of its pairs, and the biases or
    gammas of each, where there are any. live: whether it is the thread's own; slot: of its head; first: its first place there;
    place: that place among all heads of its kind."""

    live: Value
    slot: Value
    first: Value
    place: Value
    angles: list[Pair]
    factors: list[Pair]


@dataclass(frozen=True)
class TokenHeads:
    """Biases, norm and rotation of heads of `head_dim` values, all of which are rotated; neox, bias and normed as in
    rope_source.py. `queries` slots of shared memory are for query heads, one more is for the key and one for the value.
    threads: of the block, a power of two of warps. A head is dealt out to the lanes of a warp where it is normalised, as in
    per_head_rmsnorm, else by PAIRS pairs to as many threads as it takes."""

    neox: bool
    bias: bool
    normed: bool
    head_dim: int
    queries: int
    threads: int

    def room(self, k: KernelBuilder) -> SharedView:
        """New shared memory for `prepare`, or for one with fewer queries: f32[queries + 2, head_dim]."""
        return k.shared(F32, self.queries + 2, self.head_dim)

    def row(self, k: KernelBuilder, held: SharedView, slot: int, first: Value) -> SharedPart:
        """The rest of a slot of `held` from value `first` on."""
        return held.start().at(first).at(slot * self.head_dim)

    @property
    def key(self) -> int:
        """The slot of the key; that of the value is the next."""
        return self.queries

    @property
    def _share(self) -> int:
        """Threads that have a head."""
        return WARP_SIZE if self.normed else self.head_dim // (2 * PAIRS)

    @property
    def _distance(self) -> int:
        """Of the two values of a pair."""
        return self.head_dim // 2 if self.neox else 1

    def prepare(self, k: KernelBuilder, token: BlockToken, held: SharedView) -> None:
        """Fill `held`, and write key and value into the caches if it is this block that does. All threads must come here, and
        meet before they read it."""
        for start in range(0, (self.queries + 2) * self._share, self.threads):
            share = self.begin(k, token, start)
            self.finish(k, token, share, self.fetch(k, share), held)

    def begin(self, k: KernelBuilder, token: BlockToken, start: int = 0) -> Share:
        """The thread's share of those from `start` on; what is constant for it is on its way. The last warps come first: they
        have the fewest positions. Threads that have none take the last once more, and do nothing with it."""
        live, slot, number = self._own_share(k, token, start)
        head = k.select(slot < self.key, token.first + k.min(slot, token.heads - 1), token.kv_head)
        first = number if self.normed else number * (PAIRS if self.neox else 2 * PAIRS)
        place = head * self.head_dim + first
        factors: list[Pair] = []
        if self.normed:
            factors = self._pairs(k, slot, first, "q_gamma", "k_gamma", "k_gamma")
            turns = range(0, self.head_dim // 2, WARP_SIZE)
            loads = [k.load_vector(k.arg.table[token.position, first + at, 0], 2) for at in turns]
            angles = neighbours([value for load in loads for value in load])
        else:
            if self.bias:
                factors = self._pairs(k, slot, place, "q_bias", "k_bias", "v_bias")
            angles = neighbours(k.load_vector(k.arg.table[token.position, number * PAIRS, 0], 2 * PAIRS))
        return Share(live, slot, first, place, angles, factors)

    def fetch(self, k: KernelBuilder, share: Share) -> list[Pair]:
        """Begin to load the pairs of the share."""
        return self._pairs(k, share.slot, share.place, "q", "k", "v")

    def _pairs(self, k: KernelBuilder, slot: Value, place: Value, *names: str) -> list[Pair]:
        """The thread's pairs, from its first place on, of the argument for the kind of head that a slot has."""
        array = self._of(k, slot, *names).at(place)
        return self._every_32nd(k, array) if self.normed else load_pairs(k, array, self._distance, PAIRS)

    def _own_share(self, k: KernelBuilder, token: BlockToken, start: int) -> tuple[Value, Value, Value]:
        """Whether the thread has one, the slot of its head, and its number there."""
        share = 1 if self.normed else self._share  # what is counted: whole warps, so that all of a warp go one way, or threads
        every = (self.queries + 2) * share
        wanted = every if token.newest is None else k.select(token.newest, k.u32(every), self.queries * share)
        if self.normed:
            warp = k.shuffle(k.warp ^ (self.threads // WARP_SIZE - 1), 0) + start // WARP_SIZE
            return warp < wanted, k.min(warp, wanted - 1), k.lane
        item = (k.tid.x ^ (self.threads - WARP_SIZE)) + start
        own = k.min(item, wanted - 1)
        return item < wanted, own // share, own % share

    def finish(self, k: KernelBuilder, token: BlockToken, share: Share, pairs: list[Pair], held: SharedView) -> None:
        """What is left of `prepare` for the share and its pairs."""
        slot, first = share.slot, share.first
        with k.when(share.live):
            pairs = self._made(k, share, pairs)
            self._store(k, held.start().at(slot * self.head_dim + first), pairs)
            with k.when(token.stores & (slot >= self.key)):
                cache = self._of(k, slot, "k_cache", "k_cache", "v_cache")
                row = token.kv_head * k.arg.k_cache.shape[1] + token.row
                self._store(k, cache.at(row * self.head_dim + first), pairs)

    def _made(self, k: KernelBuilder, share: Share, pairs: list[Pair]) -> list[Pair]:
        """The pairs with their biases; those of queries and the key normalised and turned."""
        if self.bias:
            pairs = [(a + c, b + d) for (a, b), (c, d) in zip(pairs, share.factors, strict=True)]
        made = [(k.variable(a, F32), k.variable(b, F32)) for a, b in pairs]
        with k.when(share.slot <= self.key):
            if self.normed:
                values = list(normed(k, _in_order(pairs), _in_order(share.factors), self.head_dim))
                pairs = list(zip(values[: len(pairs)], values[len(pairs) :], strict=True))
            for pair, (cosine, sine), (a, b) in zip(pairs, share.angles, made, strict=True):
                first, second = turned(k, pair, cosine, sine)
                a @= first
                b @= second
        return made

    def _store(self, k: KernelBuilder, row: GlobalArray | SharedPart, pairs: list[Pair]) -> None:
        """The share's pairs in a row from their first place on."""
        if self.normed:
            for at, pair in zip(range(0, self.head_dim // 2, WARP_SIZE), pairs, strict=True):
                store_pair(k, row.at(at), self._distance, pair)
        else:
            store_pairs(k, row, self._distance, pairs)

    def _every_32nd(self, k: KernelBuilder, row: GlobalArray) -> list[Pair]:
        """The pairs of a lane in the order of per_head_rmsnorm."""
        return [load_pair(k, row.at(at), self._distance) for at in range(0, self.head_dim // 2, WARP_SIZE)]

    def _of(self, k: KernelBuilder, slot: Value, query: str, key: str, value: str) -> GlobalArray:
        """The argument for the kind of head that a slot has, from its first value on."""
        arrays: list[GlobalArray] = [getattr(k.arg, name) for name in (query, key, value)]
        q, of_key, of_value = (array.base for array in arrays)
        base = k.select(slot < self.key, q, k.select(slot == self.key, of_key, of_value))
        return replace(arrays[1], base=base, shape=(prod(arrays[1].shape),))


def _in_order(pairs: list[Pair]) -> list[Value]:
    """The first values of all pairs, then the second."""
    return [value for values in zip(*pairs, strict=True) for value in values]
