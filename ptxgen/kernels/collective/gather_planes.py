"""The gather of int8 planes: what products read of a row whose parts the ranks have computed, made on each rank and sent to the
others with one launch. A row is short, so it takes the way there and no more: each word is its own flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Scalar, Signature, addresses, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import Element, GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.collective.all_gather import MOST_BLOCKS, MOST_RANKS
from ptxgen.kernels.collective.plane_words import BLOCK_LANES, PlaneWords
from ptxgen.kernels.norm.squares import group_squares, rounded_squares
from ptxgen.kernels.quantize import int8_planes
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST
from ptxgen.kernels.quantize.quantize import LANE_VALUES, Quantize, block_integers, packed, planes_of
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32, U32, U64

THREADS: Final = 128


class Word(NamedTuple):
    """Four bytes of an array that is gathered: its place among the words of a slice, its place in the whole of a rank, and
    whether the first lane of a block alone has to do with it."""

    place: Value
    whole: Element
    leads: bool


@register(only_sends=(False, True))
@dataclass(frozen=True)
class GatherPlanes(KernelType):
    """digits, scales and sums = those of the slices x of all ranks side by side, of one row of n values, in the memory of each.

    x: f32[n / ranks], this rank's slice, of whole blocks of 32; digits: s8[1, digits, n], scales: f32[1, n / 32], sums: s32[1,
    n / 32]: what q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of the whole row. `normed`: what an RMSNorm
    of the row needs, for kernels that complete it (compose.complete_norm): the planes are those of the f32 products x * gamma,
    gamma: f32[n], and squares: f32[n / 32] the sums of x^2 of each 32, as group_squares makes them (norm/squares.py). numbers:
    u32[blocks], inbox: u64[2, ranks, words]: zeros before the first launch, and nobody else's; inboxes: u64[ranks], the
    addresses of the inbox of each rank, this one's included; rank: u32.

    One launch on each rank is one gather (LaunchConfig.ranks). A thread has four values. Each word, four bytes, of what it
    makes of them it sends to the inboxes of the others, with the number of the gather beside it; then it waits, a bounded time,
    until their words of this number are in its own, and puts them in their places. So nothing is told but the words themselves:
    no fence waits until stores have arrived, as before the flags of all_gather, and no flag goes behind them. It is twice the
    bytes, of which a row has few. Nothing changes from launch to launch but the numbers.

    **Two inboxes in turn.** Even gathers use the first, odd ones the second. Let rank A be ahead, and B still wait in gather k.
    A sends words of gather k + 1 into the other inbox, and of gather k + 2 only when its own k + 1 has ended, for which it has
    words that B sent in k + 1. B did that behind its gather k, whose loads were over: a launch that has ended loads nothing any
    more. The arrays themselves are written by their own rank alone, so they may be gathered into as often as one likes. A word
    tells no more than that: no other store of a rank is made visible to another by it.

    **send_digits** does not wait for the words of others. Of digits, scales, sums and squares it writes the places of this
    rank's slice. A launch on each rank is one message, and its words are for hw_dp4a with `row_parts`, which takes the first of
    numbers, and inbox: it waits for the words itself, so no launch puts them in their places first, or ends between. There is
    **one inbox**, u64[1, ranks, words], so that who receives knows where to look before it knows the number. Between two
    messages into it there must be another gather, or message, that every rank has waited for. Let rank A be ahead, and B still
    wait for words of message k. A sends message k + 1 behind the gather between, for which it has what B gave. B gave that
    behind its launches that waited for message k: they had ended. Where one launch both waits for message k and sends what is
    between (gated_hw_dp4a_..._sent), each block has received all of k before it has results, and the message between is whole
    when all blocks have sent."""

    family: ClassVar[str] = "collective"
    waits_inside: ClassVar[bool] = True
    n: int
    ranks: int
    digits: int
    normed: bool = False
    only_sends: bool = field(default=False, kw_only=True, metadata=HIDDEN)

    @property
    def name(self) -> str:
        return "send_digits" if self.only_sends else "gather_digits"

    @property
    def inboxes(self) -> int:
        """Of a rank, for messages in turn."""
        return 1 if self.only_sends else 2

    def __post_init__(self) -> None:
        require(self, "ranks", low=2, high=MOST_RANKS)
        require(self, "n", multiple=BLOCK * self.ranks)
        require(self, "digits", high=max(LARGEST))

    @property
    def columns(self) -> int:
        """Values of a rank's slice."""
        return self.n // self.ranks

    @property
    def lanes(self) -> int:
        """Threads that have values, where each has four at a time."""
        return self.columns // LANE_VALUES

    @property
    def words(self) -> PlaneWords:
        """What is made of a slice."""
        return PlaneWords(self.columns, self.digits, self.normed)

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return min(-(-self.lanes // THREADS), MOST_BLOCKS)

    @property
    def turns(self) -> int:
        """How often a thread has four values."""
        return -(-self.lanes // (self.blocks * THREADS))

    @property
    def gathered(self) -> dict[str, Array]:
        """What is put together on each rank, or made of its slice."""
        squares = {"squares": write(F32, self.n // BLOCK)} if self.normed else {}
        arrays = {**int8_planes.arrays(1, self.digits, self.n, "out"), **squares}
        return {name: replace(array, partial=self.only_sends) for name, array in arrays.items()}

    def signature(self) -> Signature:
        return {
            **self.gathered,
            "x": read(F32, self.columns),
            **({"gamma": read(F32, self.n, constant=True)} if self.normed else {}),
            "numbers": update(U32, self.blocks),
            "inbox": update(U64, self.inboxes, self.ranks, self.words.count),
            "inboxes": addresses("inbox", self.ranks),
            "rank": Scalar(U32, 0, self.ranks - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.blocks, block=THREADS, ranks=self.ranks)

    def emit(self, k: KernelBuilder) -> None:
        rank, step = k.arg.rank, self.blocks * THREADS
        others = [(rank + away) % self.ranks for away in range(1, self.ranks)]  # each begins with another one
        inboxes = [k.arg.inboxes[other] for other in others]
        places = [k.ctaid.x * THREADS + k.tid.x + first for first in range(0, self.turns * step, step)]
        # Lanes past the end do the last lane's work again, because shuffles need them all.
        lanes = [k.min(place, self.lanes - 1) for place in places]
        gammas = [self._gamma(k, rank * self.columns + lane * LANE_VALUES) for lane in lanes]
        k.wait_for_launch_before()
        number = k.load(k.arg.numbers[k.ctaid.x]) + 1
        turn = number & (self.inboxes - 1)
        loaded = [k.load_vector(k.arg.x[lane * LANE_VALUES], LANE_VALUES) for lane in lanes]
        for place, lane, xs, gamma in zip(places, lanes, loaded, gammas, strict=True):
            made = self._made(k, xs, gamma)
            for (at, whole, leads), value in zip(self._words(k, rank, lane), made, strict=True):
                with k.when(self._lives(k, place, leads)):
                    for inbox in inboxes:
                        k.send_word(inbox[turn, rank, at], value, number)
                    k.store(whole, value)
        k.barrier()  # all of the block have read the number
        with k.when(k.tid.x == 0):
            k.store(k.arg.numbers[k.ctaid.x], number)
        for place, lane in zip(places, lanes, strict=True):
            for other in others:
                self._receive(k, place, self._words(k, other, lane), k.arg.inbox.at(turn, other, 0), number)

    def _receive(self, k: KernelBuilder, place: Value, words: Sequence[Word], inbox: GlobalArray, number: Value) -> None:
        """Put the words of another rank in their places, unless those that read them wait for them."""
        if self.only_sends:
            return
        found = k.receive_words([inbox[word.place] for word in words], number)
        for word, value in zip(words, found, strict=True):
            with k.when(self._lives(k, place, word.leads)):
                k.store(word.whole, value)

    def _gamma(self, k: KernelBuilder, first: Value) -> tuple[Value, ...]:
        return k.load_vector(k.arg.gamma[first], LANE_VALUES) if self.normed else ()

    def _made(self, k: KernelBuilder, xs: tuple[Value, ...], gamma: tuple[Value, ...]) -> list[Value]:
        """What stands for the lane's values, as u32, in the order of `_words`; the last of these are alike in the lanes of a
        block."""
        quantised = [x * factor for x, factor in zip(xs, gamma, strict=True)] if self.normed else list(xs)
        integers, scale, total = block_integers(k, self.digits, quantised)
        words = [packed(k, parts) for parts in planes_of(integers, self.digits)]
        of_block = [scale, total, *([group_squares(k, xs)] if self.normed else [])]
        return [*words, *(k.bits(value, U32) for value in of_block)]

    def _words(self, k: KernelBuilder, rank: Value, lane: Value) -> list[Word]:
        """Those of a lane of a rank."""
        words, block = self.words, lane // BLOCK_LANES
        found = []
        for plane in range(self.digits):
            whole = k.arg.digits[0, plane, rank * self.columns + lane * LANE_VALUES]
            found.append(Word(lane + words.start("digits", plane), replace(whole, dtype=U32), leads=False))
        for name in words.of_blocks:
            array: GlobalArray = getattr(k.arg, name)
            whole = array.at(*[0] * len(array.shape))[rank * words.blocks + block]
            found.append(Word(block + words.start(name), replace(whole, dtype=U32), leads=True))
        return found

    def _lives(self, k: KernelBuilder, place: Value, leads: bool) -> Value:
        live = place < self.lanes
        return live & ((k.lane & (BLOCK_LANES - 1)) == 0) if leads else live

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """The very bits: what is made of f32 values is correctly rounded, in one order."""
        numbers = arguments["numbers"] + np.uint32(1)
        x: NDArray[np.float32] = arguments["x"]
        row = x.reshape(1, self.n) * arguments["gamma"][:1] if self.normed else x.reshape(1, self.n)
        whole: dict[str, NDArray[Any]] = int8_planes.quantize(row, self.digits)._asdict()
        if self.normed:
            whole["squares"] = rounded_squares(x.reshape(self.n))
        slices = [self._slices(array).view(np.uint32).astype(np.uint64) for array in whole.values()]
        sent = np.concatenate(slices, axis=1) | numbers[:, :1].astype(np.uint64) << np.uint64(32)
        inbox = arguments["inbox"].copy()
        for rank in range(self.ranks):
            others = np.arange(self.ranks) != rank
            inbox[rank, int(numbers[rank, 0]) % self.inboxes, others] = sent[others]
        of_each = {name: np.stack([array] * self.ranks) for name, array in whole.items()}
        if self.only_sends:
            of_each = {name: self._own_slices(arguments[name], array) for name, array in of_each.items()}
        return {**of_each, "numbers": numbers, "inbox": inbox}

    def _own_slices(self, before: NDArray[Any], whole: NDArray[Any]) -> NDArray[Any]:
        """The array of all ranks before, each with its slice of the whole."""
        after, size = before.copy(), before.shape[-1] // self.ranks
        for rank in range(self.ranks):
            own = slice(rank * size, (rank + 1) * size)
            after[rank][..., own] = whole[rank][..., own]
        return after

    def _slices(self, whole: NDArray[Any]) -> NDArray[Any]:
        """What of an array each rank has made, one after another: [ranks, ...]."""
        parts = np.split(whole, self.ranks, axis=-1)
        return np.stack([np.ascontiguousarray(part).reshape(-1) for part in parts])

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """Nothing but correctly rounded operations in a fixed order."""
        return dict.fromkeys((*self.gathered, "numbers", "inbox"), 0.0)

    def work(self) -> Work:
        """Of a rank: that of quantising its slice, of which squares take two operations a value and gamma one; each word is
        sent to each other with a number, and theirs, if it waits for them, are read with these and written."""
        quantize, more = Quantize(self.digits, self.columns).work(), 3 * self.columns * self.normed
        received = self.words.count * (self.ranks - 1)
        squares = F32.bytes * self.normed * (self.columns + self.columns // BLOCK)
        each = U64.bytes if self.only_sends else 2 * U64.bytes + U32.bytes
        return Work(quantize.flops + more, quantize.bytes + squares + received * each)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        if fixed["only_sends"]:
            yield cls(**fixed, n=64, ranks=2, digits=3, normed=True)
            yield cls(**fixed, n=4096, ranks=4, digits=3)
            yield cls(**fixed, n=36864, ranks=2, digits=2)  # two turns
            return
        yield cls(n=64, ranks=2, digits=3, normed=True)
        yield cls(n=4096, ranks=2, digits=3, normed=True)
        yield cls(n=896, ranks=4, digits=1, normed=True)
        yield cls(n=4096, ranks=4, digits=2)
        yield cls(n=36864, ranks=2, digits=3)  # two turns

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Slices of all ranks, with a massive value and a block of zeros, and the numbers of some gather, the last before 2^32
        among them."""
        ranks = self.ranks
        x = rng.standard_normal((ranks, self.columns), np.float32)
        x[0, 0], x[-1, -BLOCK:] = OUTLIER, 0.0
        gamma = {"gamma": np.tile(rng.uniform(-0.5, 2.0, self.n).astype(np.float32), (ranks, 1))} if self.normed else {}
        number = int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1]))
        latest = [number - (number % self.inboxes != turn) for turn in range(self.inboxes)]  # that went into each inbox
        inbox = np.array([one % 2**32 << 32 for one in latest], np.uint64).reshape(1, self.inboxes, 1, 1)
        made = int8_planes.unwritten(ranks, self.digits, self.n)
        unwritten = {name: array.reshape(ranks, *self.gathered[name].shape) for name, array in made.items()}
        if self.normed:
            unwritten["squares"] = np.full((ranks, self.n // BLOCK), np.nan, np.float32)
        if self.only_sends:
            unwritten = {name: np.zeros_like(array) for name, array in unwritten.items()}
        return {
            **unwritten,
            "x": x,
            **gamma,
            "numbers": np.full((ranks, self.blocks), number, np.uint32),
            "inbox": np.broadcast_to(inbox, (ranks, self.inboxes, ranks, self.words.count)).copy(),
            "inboxes": np.zeros((ranks, ranks), np.uint64),
            "rank": np.arange(ranks, dtype=np.uint32),
        }
