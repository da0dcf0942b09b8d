"""Activations that a block makes digits of by itself, in shared memory, from the parts of a row that ranks have computed: this
rank's own from global memory, the others' words from where they send them (sent.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Scalar, Signature, read
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.kernels.collective.message import INBOXES
from ptxgen.kernels.gemv.fragments import FragmentLane
from ptxgen.kernels.gemv.shared_digits import PADDED, Layout, SharedDigits, padding
from ptxgen.kernels.norm.squares import SumOfSquares, group_squares, inverse_root
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.kernels.quantize.quantize import LANE_VALUES, block_integers, digits_of, packed
from ptxgen.types import F32, U32, U64

BLOCK_LANES: Final = BLOCK // LANE_VALUES


def received_arguments(k: int, parts: int, *, normed: bool) -> Signature:
    """What stands for a row of k activations that comes in parts: see HwDp4aType.parts."""
    norm: Signature = {"gamma": read(F32, k, constant=True), "eps": Scalar(F32, low=0.0)} if normed else {}
    return {
        "x": read(F32, k // parts),
        "inbox": read(U64, INBOXES, parts, k // parts),
        "number": read(U32, 1),
        "rank": Scalar(U32, 0, parts - 1),
        **norm,
    }


def received_row(arguments: Mapping[str, Any]) -> NDArray[np.float32]:
    """The whole row that these arguments stand for: f32[k]."""
    number, rank = int(arguments["number"][0]), int(arguments["rank"])
    parts = [(words & 0xFFFFFFFF).astype(np.uint32).view(np.float32) for words in arguments["inbox"][number % INBOXES]]
    parts[rank] = arguments["x"]
    return np.concatenate(parts)


def as_received(rng: np.random.Generator, row: NDArray[np.float32], parts: int) -> dict[str, Any]:
    """Arguments that stand for this row, f32[k], on some rank: the other inbox has older words, and so has the rank's own
    place in both."""
    number, rank = int(rng.choice([1, 2, 2**31, 2**32 - 1])), int(rng.integers(parts))
    slices = row.reshape(parts, -1)
    old = rng.standard_normal((INBOXES, *slices.shape)).astype(np.float32).view(np.uint32).astype(np.uint64)
    inbox = old | np.uint64((number - 1) << 32)
    words = slices.view(np.uint32).astype(np.uint64) | np.uint64(number << 32)
    others = np.arange(parts) != rank
    inbox[number % INBOXES, others] = words[others]
    return {
        "x": slices[rank].copy(),
        "inbox": inbox,
        "number": np.array([number], np.uint32),
        "rank": np.uint32(rank),
    }


class _Quad(NamedTuple):
    """Four neighbouring values of a row, those from `first` on, which a lane makes digits of; live: whether they are not
    another lane's, too."""

    first: Value
    live: Value | None


class ReceivedDigits(SharedDigits):
    """As SharedDigits of one row, all of which is staged at once."""

    def __init__(self, k: KernelBuilder, layout: Layout, lane: FragmentLane, *, dynamic: bool, parts: int, normed: bool) -> None:
        """dynamic: as there; parts: ranks; normed: the digits are those of gamma * x, whose norm scales complete."""
        super().__init__(k, layout, lane, dynamic=dynamic)
        self._parts, self._normed = parts, normed
        self._squares = k.shared(F32, layout.values // BLOCK) if normed else None

    def fill(self, rows: range, first: int, count: int) -> None:
        """Make the digits of the rank's own part while the others' words are on their way, then theirs, and wait for the
        threads of the block."""
        k, parts, rank = self.k, self._parts, self.k.arg.rank
        of_part = self.layout.values // parts
        places = range(0, of_part // LANE_VALUES, k.threads)
        own = [self._quad(rank, start) for start in places]
        others = [self._quad((rank + away) % parts, start) for away in range(1, parts) for start in places]
        gammas = [self._gamma(quad) for quad in (*own, *others)]
        number = k.load(k.arg.number[0])
        loaded = [k.load_vector(k.arg.x[quad.first - rank * of_part], LANE_VALUES) for quad in own]
        scales = [self._make(quad, xs, gamma) for quad, xs, gamma in zip(own, loaded, gammas, strict=False)]
        turn = k.arg.inbox.at(number & (INBOXES - 1), 0, 0)
        words = k.receive_words([turn.at(quad.first)[i] for quad in others for i in range(LANE_VALUES)], number)
        for place, (quad, gamma) in enumerate(zip(others, gammas[len(own) :], strict=True)):
            xs = [k.bits(word, F32) for word in words[place * LANE_VALUES :][:LANE_VALUES]]
            scales.append(self._make(quad, xs, gamma))
        factor = None
        if self._squares is not None:
            k.barrier()
            total = SumOfSquares(k, self._squares, self.layout.values // BLOCK).total()
            factor = inverse_root(k, total, self.layout.values, k.arg.eps)
        for quad, (scale, sum_) in zip((*own, *others), scales, strict=True):
            self._store_scale(quad, scale if factor is None else scale * factor, sum_)
        k.barrier()

    def _quad(self, part: Value, start: int) -> _Quad:
        """The one of this thread among those of a part from quad `start` on. Threads past the end do the last one's work again,
        because shuffles need them all."""
        k, count = self.k, self.layout.values // self._parts // LANE_VALUES
        place = k.tid.x + start if start else k.tid.x
        beyond = start + k.threads > count
        last = k.min(place, count - 1) if beyond else place
        return _Quad((part * count + last) * LANE_VALUES, place < count if beyond else None)

    def _gamma(self, quad: _Quad) -> tuple[Value, ...]:
        return self.k.load_vector(self.k.arg.gamma[quad.first], LANE_VALUES) if self._normed else ()

    def _make(self, quad: _Quad, xs: Sequence[Value], gamma: tuple[Value, ...]) -> tuple[Value, Value]:
        """Store the digits of a quad, and of a norm the squares of its block; returns the block's scale and sum."""
        k, layout = self.k, self.layout
        values = [x * factor for x, factor in zip(xs, gamma, strict=True)] if gamma else list(xs)
        integers, scale, total = block_integers(k, layout.digits, values)
        words = [packed(k, digits) for digits in digits_of(integers, layout.digits)]
        squares = group_squares(k, xs) if self._squares is not None else None
        byte = quad.first
        if pad := padding(layout.format):
            byte = k.mad(quad.first // PADDED, pad, byte)
        base = k.symbol_address(self._digits) + byte
        with self._where(quad, leads=False):
            for digit, word in enumerate(words):
                k.store(Element("shared", base.register, digit * layout.digit_bytes, U32), word)
        if self._squares is not None and squares is not None:
            with self._where(quad, leads=True):
                k.store(self._squares[quad.first // BLOCK], squares)
        return scale, total

    def _store_scale(self, quad: _Quad, scale: Value, total: Value) -> None:
        k, layout = self.k, self.layout
        base = k.symbol_address(self._scales) + quad.first // BLOCK * layout.scale_bytes
        with self._where(quad, leads=True):
            both = (scale, -(scale * k.f32(total))) if layout.format.has_minimum else scale
            k.store(Element("shared", base.register, self._scales_start, F32), both)

    def _where(self, quad: _Quad, *, leads: bool) -> AbstractContextManager[None]:
        """In the threads whose quad it is; leads: in the first lane of its block."""
        k = self.k
        live = (k.lane & (BLOCK_LANES - 1)) == 0 if leads else None
        if quad.live is not None:
            live = quad.live if live is None else quad.live & live
        return k.when(live) if live is not None else nullcontext()
