"""Int8 planes of activations of a row whose parts ranks have made, staged in shared memory by a block: those of its own rank
from global memory, and the words of the others as they come (collective/gather_planes.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Scalar, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.collective.plane_words import PlaneWords
from ptxgen.kernels.gemv.fragments import FragmentLane
from ptxgen.kernels.gemv.shared_planes import PIECE, Layout, SharedPlanes, planes_before
from ptxgen.kernels.norm.squares import SumOfSquares, inverse_root
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.quantize.quantize import LANE_VALUES
from ptxgen.types import F32, S32, U32, U64


def received_arguments(whole: Signature, words: PlaneWords, parts: int) -> Signature:
    """What stands for a row that comes in parts: see PlaneSource.row_parts. whole: the arguments of one that is there."""
    arrays = {name: one for name, one in whole.items() if isinstance(one, Array)}
    own = {name: replace(arrays[name], partial=True) for name in ("digits", *words.of_blocks)}
    return {
        **whole,
        **own,
        "inbox": read(U64, parts, words.count),
        "number": read(U32, 1),
        "rank": Scalar(U32, 0, parts - 1),
    }


def whole_row(arguments: Mapping[str, Any], words: PlaneWords, parts: int) -> dict[str, NDArray[Any]]:
    """The digits, scales, sums and squares of all parts that these arguments stand for."""
    rank = int(arguments["rank"])
    whole = {name: arguments[name].copy() for name in ("digits", *words.of_blocks)}
    for other in set(range(parts)) - {rank}:
        found = (arguments["inbox"][other] & 0xFFFFFFFF).astype(np.uint32)
        for place, start, count in _places(whole, words, other):
            place[...] = found[start : start + count].view(place.dtype)
    return whole


def in_parts(
    rng: np.random.Generator,
    arguments: Mapping[str, Any],
    words: PlaneWords,
    parts: int,
    rank: int | None = None,
) -> dict[str, Any]:
    """Arguments that stand for the row of these on a rank, or some. Of the parts of others it has what is no part of a result,
    and older words as its own."""
    number = int(rng.choice([1, 2, 2**31, 2**32 - 1]))
    rank = int(rng.integers(parts)) if rank is None else rank
    own = {name: arguments[name].copy() for name in ("digits", *words.of_blocks)}
    inbox = rng.integers(0, 2**32, (parts, words.count), np.uint64) | np.uint64((number - 1) << 32)
    for other in set(range(parts)) - {rank}:
        for place, start, count in _places(own, words, other):
            sent = np.ascontiguousarray(place).view(np.uint32).astype(np.uint64)
            inbox[other, start : start + count] = sent | np.uint64(number << 32)
            place[...] = 99
    return {**arguments, **own, "inbox": inbox, "number": np.array([number], np.uint32), "rank": np.uint32(rank)}


def _places(arrays: Mapping[str, NDArray[Any]], words: PlaneWords, part: int) -> Iterator[tuple[NDArray[Any], int, int]]:
    """The places of a part in each array of one row, each with its first word and how many there are."""
    for plane in range(words.digits):
        of_part = slice(part * words.values, (part + 1) * words.values)
        yield arrays["digits"][0, plane, of_part], words.start("digits", plane), words.lanes
    for name in words.of_blocks:
        of_part = slice(part * words.blocks, (part + 1) * words.blocks)
        yield arrays[name].reshape(-1)[of_part], words.start(name), words.blocks


PIECES_AHEAD: Final = 2
"""Pieces of each plane of its own part that a thread loads before it stores the first."""

WORDS_AT_ONCE: Final = 16
"""Words that a thread looks for together. All 36 of down of an 8B on four ranks took registers that there are not."""


class _Share(NamedTuple):
    """What of a part one thread moves: the part, its number there; and whether that is no other thread's, None where it never
    is."""

    part: Value
    place: Value
    live: Value | None


class ReceivedPlanes(SharedPlanes):
    """As SharedDigits of one row, all of which is staged at once."""

    def __init__(
        self, k: KernelBuilder, layout: Layout, lane: FragmentLane, *, dynamic: bool, words: PlaneWords, parts: int
    ) -> None:
        """dynamic: as there; words: of each of so many parts."""
        super().__init__(k, layout, lane, dynamic=dynamic)
        self._words, self._parts = words, parts
        self._squares = k.shared(F32, parts * words.blocks) if words.normed else None

    def fill(self, rows: range, first: int, count: int, behind_loads: Callable[[], None] | None = None) -> None:
        """Stage the row, and wait for the threads of the block. The rank's own part is loaded together with the first look for
        the words of the others; behind_loads: writes what comes between."""
        k, words = self.k, self._words
        own = k.arg.rank
        others = [(own + away) % self._parts for away in range(1, self._parts)]
        number = k.load(k.arg.number[0])
        inbox = k.arg.inbox.at(0, 0)
        digits = range(self.layout.digits)
        pieces = self._shares([own], words.values // PIECE)
        quads = self._shares(others, words.lanes)
        blocks = self._shares([own], words.blocks)
        their_blocks = self._shares(others, words.blocks)

        def word(share: _Share, name: str, plane: int = 0) -> Element:
            element: Element = inbox.at(share.part * words.count + words.start(name, plane))[share.place]
            return element

        def store(moved: Sequence[tuple[_Share, Sequence[Sequence[Value]]]]) -> None:
            for share, of_planes in moved:
                self._store_planes(share, PIECE, of_planes)

        moved: list[tuple[_Share, Sequence[Sequence[Value]]]] = []
        for share in pieces:
            if len(moved) == PIECES_AHEAD:
                store(moved)
                moved = []
            moved.append((share, [self._load_piece(plane, share) for plane in digits]))
        facts = [[k.load(self._of_block(name, share)) for name in self._needed] for share in blocks]
        if behind_loads is not None:
            behind_loads()
        wanted = [word(share, "digits", plane) for share in quads for plane in digits]
        wanted += [word(share, name) for share in their_blocks for name in self._needed]
        found: list[Value] = []
        for start in range(0, len(wanted), WORDS_AT_ONCE):
            found += k.receive_words(wanted[start : start + WORDS_AT_ONCE], number)
            store(moved)
            moved = []
            while len(found) >= len(digits) and quads:
                share, *quads = quads
                self._store_planes(share, LANE_VALUES, [[found.pop(0)] for _ in digits])
        of_blocks = iter(found)
        facts += [[self._fact(name, next(of_blocks)) for name in self._needed] for _ in their_blocks]
        self._store_facts([*blocks, *their_blocks], facts)
        k.barrier()

    @property
    def _needed(self) -> tuple[str, ...]:
        """What is staged of a block, or computed with: no sums where the format has no minima."""
        return tuple(name for name in self._words.of_blocks if name != "sums" or self.layout.format.has_minimum)

    def _shares(self, parts: Sequence[Value], count: int) -> list[_Share]:
        """Those of this thread in `count` things of each part. Threads past the end take the last one, which is another's, so
        that loads need no branch."""
        k = self.k
        shares = []
        for part in parts:
            for start in range(0, count, k.threads):
                place = k.tid.x + start if start else k.tid.x
                beyond = start + k.threads > count
                shares.append(_Share(part, k.min(place, count - 1) if beyond else place, place < count if beyond else None))
        return shares

    def _load_piece(self, plane: int, share: _Share) -> Sequence[Value]:
        first = share.part * self._words.values + share.place * PIECE
        return self.k.load_vector(self.k.arg.digits.at(0, plane, 0).at(first)[0], PIECE // 4, U32)

    def _of_block(self, name: str, share: _Share) -> Element:
        """Where the rank's own are."""
        array: GlobalArray = getattr(self.k.arg, name)
        return array.at(*[0] * len(array.shape))[share.part * self._words.blocks + share.place]

    def _fact(self, name: str, word: Value) -> Value:
        """The scale, the sum or the squares that a word is."""
        return self.k.bits(word, S32 if name == "sums" else F32)

    def _store_planes(self, share: _Share, values: int, of_planes: Sequence[Sequence[Value]]) -> None:
        """So many neighbouring values of each plane."""
        k, layout = self.k, self.layout
        first = share.part * self._words.values + share.place * values
        byte = planes_before(layout, first)
        base = k.symbol_address(self._planes) + byte
        with self._when(share.live):
            for plane, words in enumerate(of_planes):
                element = Element("shared", base.register, plane * layout.plane_bytes, U32)
                k.store(element, words if len(words) > 1 else words[0])

    def _store_facts(self, shares: Sequence[_Share], facts: Sequence[Sequence[Value]]) -> None:
        """Scales, each with its negative sum where the format has minima; completed by what the squares say."""
        k, layout, squares = self.k, self.layout, self._squares
        places = [share.part * self._words.blocks + share.place for share in shares]
        factor = None
        if squares is not None:
            for share, place, (*_, own) in zip(shares, places, facts, strict=True):
                with self._when(share.live):
                    k.store(squares[place], own)
            k.barrier()
            total = SumOfSquares(k, squares, layout.values // BLOCK).total()
            factor = inverse_root(k, total, layout.values, k.arg.eps)
        for share, place, (scale, *others) in zip(shares, places, facts, strict=True):
            complete = scale if factor is None else scale * factor
            base = k.symbol_address(self._scales) + place * layout.scale_bytes
            both = (complete, -(complete * k.f32(others[0]))) if layout.format.has_minimum else complete
            with self._when(share.live):
                k.store(Element("shared", base.register, self._scales_start, F32), both)

    def _when(self, live: Value | None) -> AbstractContextManager[None]:
        return nullcontext() if live is None else self.k.when(live)
