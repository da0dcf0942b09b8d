"""The gather of activation digits: what a product of int8 digits reads of a row whose parts the ranks have made, put together
on each of them with one launch. A row is short, so it takes the way there and no more: each word carries its own flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import numpy_dtype
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Array, KernelType, LaunchConfig, Scalar, Signature, Work, addresses, read, update, write
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.collective.all_gather import MOST_BLOCKS, MOST_RANKS, THREADS
from ptxgen.kernels.quantize import activation_digits
from ptxgen.kernels.quantize.activation_digits import BLOCK, LARGEST
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32, U32, U64

OWN: Final = "own_"
"""Before the names of what a rank has of an array that is gathered."""


class Part(NamedTuple):
    """Words of a rank's slice that are of one array: from the word `first` on, so many."""

    name: str
    first: int
    words: int


@register
@dataclass(frozen=True)
class GatherDigits(KernelType):
    """digits, scales and sums = those of all ranks side by side, of one row of n values, in the memory of each rank.

    own_digits: s8[1, digits, n / ranks], own_scales: f32[1, n / 32 / ranks], own_sums: s32[1, n / 32 / ranks]: this rank's, of
    whole blocks of 32 (activation_digits.py); digits: s8[1, digits, n], scales: f32[1, n / 32], sums: s32[1, n / 32], of which
    the values from rank * n / ranks on are those. With `squares` also own_squares: f32[n / 32 / ranks] and squares: f32[n / 32]
    (norm/squares.py). numbers: u32[blocks], inbox: u64[2, ranks, words]: zeros before the first launch, and nobody else's;
    inboxes: u64[ranks], the addresses of the inbox of each rank, this one's included; rank: u32.

    Bits are moved, none is computed with. One launch on each rank is one gather (LaunchConfig.ranks). Four bytes of a slice are
    a word. A thread has one, or few: it sends each to the inboxes of the others, with the number of the gather beside it, waits
    a bounded time until words of this number are in its own, and puts them in their places. So nothing is told but the words
    themselves: no fence waits until stores have arrived, as before the flags of all_gather, and no flag goes behind them. It is
    twice the bytes, of which a row has few. Nothing changes from launch to launch but the numbers.

    **Two inboxes in turn.** Even gathers use the first, odd ones the second. Let rank A be ahead, and B still wait in gather k.
    A sends words of gather k + 1 into the other inbox, and of gather k + 2 only when its own k + 1 has ended, for which it has
    words that B sent in k + 1. B did that behind its gather k, whose loads were over: a launch that has ended loads nothing any
    more. The arrays themselves are written by their own rank alone, so they may be gathered into as often as one likes. A word
    tells no more than that: no other store of a rank is made visible to another by it."""

    family: ClassVar[str] = "collective"
    name = "gather_digits"
    waits_inside: ClassVar[bool] = True
    n: int
    ranks: int
    digits: int
    squares: bool = False

    def __post_init__(self) -> None:
        require(self, "ranks", low=2, high=MOST_RANKS)
        require(self, "n", multiple=BLOCK * self.ranks)
        require(self, "digits", high=max(LARGEST))

    @property
    def columns(self) -> int:
        """Values of a rank's slice."""
        return self.n // self.ranks

    def arrays(self, n: int) -> dict[str, Array]:
        """What is gathered, of n values."""
        squares = {"squares": read(F32, n // BLOCK)} if self.squares else {}
        return {**activation_digits.arrays(1, self.digits, n, "in"), **squares}

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of a slice, one after another."""
        found: list[Part] = []
        for name, array in self.arrays(self.columns).items():
            first = found[-1].first + found[-1].words if found else 0
            found.append(Part(name, first, array.nbytes // U32.bytes))
        return tuple(found)

    @property
    def words(self) -> int:
        """Of a slice."""
        return sum(part.words for part in self.parts)

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return min(-(-self.words // THREADS), MOST_BLOCKS)

    @property
    def each(self) -> int:
        """Words of a thread."""
        return -(-self.words // (self.blocks * THREADS))

    def signature(self) -> Signature:
        return {
            **{name: write(array.dtype, *array.shape) for name, array in self.arrays(self.n).items()},
            **{OWN + name: array for name, array in self.arrays(self.columns).items()},
            "numbers": update(U32, self.blocks),
            "inbox": update(U64, 2, self.ranks, self.words),
            "inboxes": addresses("inbox", self.ranks),
            "rank": Scalar(U32, 0, self.ranks - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.blocks, block=THREADS, ranks=self.ranks)

    def emit(self, k: KernelBuilder) -> None:
        rank = k.arg.rank
        others = [(rank + away) % self.ranks for away in range(1, self.ranks)]  # each begins with another one
        inboxes = [k.arg.inboxes[other] for other in others]
        step = self.blocks * THREADS
        places = [k.ctaid.x * THREADS + k.tid.x + first for first in range(0, self.each * step, step)]
        k.wait_for_launch_before()
        number = k.load(k.arg.numbers[k.ctaid.x]) + 1
        words = [self._load(k, place) for place in places]
        turn = number & 1
        for place, word in zip(places, words, strict=True):
            with k.when(place < self.words):
                for inbox in inboxes:
                    k.send_word(inbox[turn, rank, place], word, number)
        k.barrier()  # all of the block have read the number
        with k.when(k.tid.x == 0):
            k.store(k.arg.numbers[k.ctaid.x], number)
        for place, word in zip(places, words, strict=True):
            self._store(k, rank, place, word)
        for place in places:
            with k.when(place < self.words):
                for other in others:
                    self._store(k, other, place, k.receive_word(k.arg.inbox[turn, other, place], number))

    def _load(self, k: KernelBuilder, place: Value) -> Value:
        """A word of this rank's slice; past its end something."""
        word = k.variable(0, U32)
        for name, first, words in self.parts:
            with k.when((place >= first) & (place < first + words)):
                own: GlobalArray = getattr(k.arg, OWN + name)
                k.assign(word, k.load(own.at(*[0] * len(own.shape))[(place - first) * (U32.bytes // own.dtype.bytes)], U32))
        return word

    def _store(self, k: KernelBuilder, rank: Value, place: Value, word: Value) -> None:
        """A word of the slice of a rank goes to its place in the whole, if there is one."""
        for name, first, words in self.parts:
            with k.when((place >= first) & (place < first + words)):
                whole: GlobalArray = getattr(k.arg, name)
                at = place - first
                if name == "digits":  # a slice of each digit
                    digit = at // (self.columns // U32.bytes)
                    index = at * U32.bytes + digit * (self.n - self.columns) + rank * self.columns
                else:
                    index = at + rank * words
                k.store(replace(whole.at(*[0] * len(whole.shape))[index], dtype=U32), word)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        numbers = arguments["numbers"] + np.uint32(1)
        inbox = arguments["inbox"].copy()
        own = [arguments[OWN + part.name].reshape(self.ranks, -1).view(np.uint32) for part in self.parts]
        sent = np.concatenate(own, axis=1) | numbers[:, :1].astype(np.uint64) << np.uint64(32)
        for rank in range(self.ranks):
            others = np.arange(self.ranks) != rank
            inbox[rank, int(numbers[rank, 0]) % 2, others] = sent[others]
        wholes = {part.name: np.concatenate(list(arguments[OWN + part.name]), axis=-1) for part in self.parts}
        gathered = {name: np.stack([whole] * self.ranks) for name, whole in wholes.items()}
        return {**gathered, "numbers": numbers, "inbox": inbox}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """None: values are copied."""
        return dict.fromkeys((*(part.name for part in self.parts), "numbers", "inbox"), 0.0)

    def work(self) -> Work:
        """Of a rank: its slice is read once and sent to each other with numbers, theirs are read with these; all is written."""
        return Work(flops=0, bytes=U32.bytes * self.words * (1 + self.ranks) + 2 * U64.bytes * self.words * (self.ranks - 1))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=64, ranks=2, digits=3, squares=True)
        yield cls(n=4096, ranks=2, digits=3, squares=True)
        yield cls(n=896, ranks=4, digits=1, squares=True)
        yield cls(n=4096, ranks=4, digits=2)
        yield cls(n=28672, ranks=2, digits=3)  # two words a thread

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Slices of all ranks, and the numbers of some gather, the last before 2^32 among them."""
        ranks = self.ranks
        number = int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1]))
        latest = [number - (number % 2 != turn) for turn in range(2)]  # that went into either inbox
        inbox = np.array([one % 2**32 << 32 for one in latest], np.uint64).reshape(1, 2, 1, 1)
        shapes = {name: (ranks, *array.shape) for name, array in self.arrays(self.columns).items()}
        own = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        own["digits"], own["sums"] = (np.rint(30 * own[name]).astype(type) for name, type in (("digits", "i1"), ("sums", "i4")))
        return {
            **{name: np.zeros((ranks, *array.shape), numpy_dtype(array.dtype)) for name, array in self.arrays(self.n).items()},
            **{OWN + name: array for name, array in own.items()},
            "numbers": np.full((ranks, self.blocks), number, np.uint32),
            "inbox": np.broadcast_to(inbox, (ranks, 2, ranks, self.words)).copy(),
            "inboxes": np.zeros((ranks, ranks), np.uint64),
            "rank": np.arange(ranks, dtype=np.uint32),
        }
