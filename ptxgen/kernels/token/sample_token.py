"""Samples the next token where the logits are: top-k, top-p, min-p, temperature, and a random number of its own making."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.mathlib import EXP_TAIL, LN2_HIGH, LN2_LOW, ROUNDER, ROUNDER_BITS
from ptxgen.dsl.memory import Element, GlobalArray, SharedView
from ptxgen.dsl.value import Value
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.kernels.shape import require
from ptxgen.kernels.token.allowed import allowed_argument, allowed_bits, penalty, restricted, some_allowed, words
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from ptxgen.kernels.token.philox import emit_random_bits, random_bits
from ptxgen.kernels.token.rank import rank_of, value_of
from ptxgen.kernels.token.sampling import LANES, LOWEST, MANTISSA_BITS, UNIT_BITS, sample, settings
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, S32, U32, U64

THREADS: Final = 1024
WARPS: Final = THREADS // WARP_SIZE
UNROLL: Final = 4  # loads in flight a thread

BIN_BITS: Final = 11
BINS: Final = 1 << BIN_BITS  # of a histogram, two a thread; as many as LANES
ID_BITS: Final = 2 * BIN_BITS

MOST_TOKENS: Final = 1 << ID_BITS
"""The largest vocabulary."""

NOBODY: Final = 0xFFFFFFFF  # the rank of a NaN: no token has it

Of = Callable[[Value, Value], Value]
"""A value of a token's id and logit."""


@register(m=[None, GIVEN], allowed=[False])
@register(m=[GIVEN], allowed=[True])
@dataclass(frozen=True)
class SampleToken(KernelType):
    """out[i] = the token of row i of the logits x that its random number chooses; random[i, 1] += 1.

    out: u32[1]; x: f32[n], n up to 2^22; settings: u32[4], of ptxgen.kernels.token.sampling.settings; random: u64[2], the
    seed and the number of the draw; each with a dimension for m rows in front. The token is the very one of `sample` there,
    with `random_bits` of the two; 0xFFFFFFFF if any x is NaN or the largest is infinite. One block a row. Of m rows one whose
    settings are zeros, as those of `settings` never are, is left out: nothing of it is read or written.

    With `allowed`, allowed: u32[m, n / 32 rounded up], as in argmax.py. Where all are -infinity, the token is 0xFFFFFFFF.

    Every step is the same search: tokens have ranks and measures, and it finds the rank up to which the measures sum to a
    target, by histograms of the rank's digits, the highest first. For top-k the rank is that of the logit and the measure is 1;
    for top-p it is the weight; for the last of equal logits the rank is the id; for the draw it is the id's place. All measures
    are whole numbers, so the order in which threads add them does not matter."""

    family: ClassVar[str] = "token"
    n: int
    m: int | None = field(default=None, kw_only=True)
    allowed: bool = field(default=False, kw_only=True, metadata=HIDDEN)

    def __post_init__(self) -> None:
        require(self, "n", high=MOST_TOKENS)
        if self.m is not None or self.allowed:
            require(self, "m")

    @property
    def name(self) -> str:
        return f"{'' if self.m is None else 'batched_'}{'allowed_' if self.allowed else ''}sample_token"

    def signature(self) -> Signature:
        if self.m is None:
            alone: Signature = {"out": write(U32, 1, align=4), "x": read(F32, self.n)}
            return {**alone, "settings": read(U32, 4), "random": update(U64, 2)}
        return {
            "out": update(U32, self.m, align=4, partial=True),
            "x": read(F32, self.m, self.n, partial=True),
            "settings": read(U32, self.m, 4),
            "random": update(U64, self.m, 2, partial=True),
            **({"allowed": allowed_argument(self.m, self.n, partial=True)} if self.allowed else {}),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1 if self.m is None else self.m, block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        a = k.arg
        if self.m is None:
            self._choose(k, _Row(a.out.at(0), a.x, a.settings.at(0), a.random.at(0)))
            return
        row = k.ctaid.x
        with k.when(k.load(a.settings[row, 0]) != 0):  # the same in all threads
            self._choose(k, _Row(a.out.at(row), a.x.at(row, 0), a.settings.at(row, 0), a.random.at(row, 0)))

    def _choose(self, k: KernelBuilder, row: _Row) -> None:
        """The token of a row, by all threads of a block."""
        largest, bad = k.f32(float("-inf")), k.u32(0)

        def look(index: Value, x: Value) -> None:
            k.assign(largest, k.max(largest, x))
            k.assign(bad, k.select(x != x, 1, bad))

        self._each(k, row.x, look)
        top, bad = k.block_max(largest), k.block_max(bad)
        seed, draw = k.load(row.random[0]), k.load(row.random[1])
        shared = k.shared(U32, 1)
        k.barrier()  # all have read the number of the draw
        with k.when(k.tid.x == 0):
            k.store(row.random[1], draw + 1)
            infinite = (top == float("inf")) | (top == float("-inf"))
            k.store(shared[0], k.select(infinite, 1, bad))
        k.barrier()
        with k.when(k.load(shared[0]) == 0):  # the same in all threads
            self._sample(k, row, top, emit_random_bits(k, seed, draw))
        with k.otherwise(), k.when(k.tid.x == 0):
            k.store(row.out[0], NOT_A_NUMBER)

    def _sample(self, k: KernelBuilder, row: _Row, top: Value, random: Value) -> None:
        scale, top_k, top_p, least = (k.load(row.settings[i]) for i in range(4))
        search = _Search(k, lambda visit: self._each(k, row.x, visit))
        # Candidates are those before the rank `last`, and of those that have it the first `equals`, up to the id `end`.
        last, equals, end = k.u32(NOBODY), k.u64(0), k.u32(self.n)
        none = k.u64(0)

        def rank(_: Value, x: Value) -> Value:
            return rank_of(k, x)

        def weight(x: Value) -> Value:
            return _weight(k, x - top)

        with k.when((top_k != 0) & (top_k < self.n)):
            found, rest = search(32, rank, lambda index, x: k.u32(1), lambda total: k.u64(top_k))
            k.assign(last, found)
            k.assign(equals, rest)
        with k.when(top_p != 0):
            found, rest = search(
                32,
                rank,
                lambda index, x: k.select(rank_of(k, x) < last, weight(x), none),
                lambda total: k.max(k.mul_hi(total, k.u64(top_p) << 32), 1),
                (last, k.select(last == NOBODY, none, equals * weight(value_of(k, last)))),
            )
            each = weight(value_of(k, found))  # at least 1: the sum was reached here
            k.assign(last, found)
            k.assign(equals, (rest + each - 1) // each)
        with k.when(last != NOBODY):
            found, _ = search(
                ID_BITS,
                lambda index, x: index,
                lambda index, x: k.select(rank_of(k, x) == last, k.u32(1), 0),
                lambda total: equals,
            )
            k.assign(end, found)
        lowest, sharpness = top + k.bits(least, F32), k.bits(scale, F32)

        def chance(index: Value, x: Value) -> Value:
            rank = rank_of(k, x)
            kept = ((rank < last) | ((rank == last) & (index <= end))) & (x >= lowest)
            return k.select(kept, _weight(k, (x - top) * sharpness), none)

        place, _ = search(ID_BITS, lambda index, x: _turned(index), chance, lambda total: k.mul_hi(total, random) + 1)
        with k.when(k.tid.x == 0):
            k.store(row.out[0], _turned(place))

    def _each(self, k: KernelBuilder, x: GlobalArray, visit: Callable[[Value, Value], None]) -> None:
        """Visit all logits of a row, each with its index. Threads take neighbours; no barrier may be inside."""
        unroll = min(UNROLL, -(-self.n // THREADS))
        whole = self.n // (THREADS * unroll) * THREADS * unroll
        if whole:
            for start in k.strided(k.tid.x, whole, step=THREADS * unroll):
                rest = x.at(start)
                loaded = [self._seen(k, k.load(rest[step * THREADS]), start, step * THREADS) for step in range(unroll)]
                for step, logit in enumerate(loaded):
                    visit(start + step * THREADS, logit)
        if whole < self.n:
            for index in k.strided(k.tid.x + whole, self.n, step=THREADS):
                visit(index, self._seen(k, k.load(x[index]), index, 0))

    def _seen(self, k: KernelBuilder, x: Value, start: Value, offset: int) -> Value:
        """What a token's logit counts as, whose id is start + offset: the logit, where -0 becomes +0."""
        if self.allowed:
            x = x + penalty(k, allowed_bits(k, k.ctaid.x, start + offset), 0)
        return x + 0.0

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        out, random = arguments["out"].copy(), arguments["random"].copy()
        x = restricted(**arguments) if self.allowed else arguments["x"]
        rows = zip(out, np.atleast_2d(x), np.atleast_2d(arguments["settings"]), random.reshape(-1, 2), strict=True)
        for i, (_, logits, filters, drawn) in enumerate(rows):
            if self.m is None or filters[0]:
                seed, draw = (int(word) for word in drawn)
                usable = math.isfinite(logits[np.argmax(logits)])
                out[i] = sample(logits, filters, random_bits(seed, draw)) if usable else NOT_A_NUMBER
                drawn[1] = (draw + 1) % 2**64
        return {"out": out, "random": random}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """None: all sums are of whole numbers."""
        return {"out": 0.0, "random": 0.0}

    def work(self) -> Work:
        """Two exponentials a logit; the histograms are not counted."""
        rows = self.m or 1
        bits = Work(rows * self.n, U32.bytes * rows * words(self.n)) if self.allowed else Work(0, 0)
        each = F32.bytes * self.n + U32.bytes * 5 + U64.bytes * 3
        return Work(flops=rows * 40 * self.n + bits.flops, bytes=rows * each + bits.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n in (4999, 1, 31, 1024, 151936):
            yield cls(n)
        for n, m in ((4999, 3), (31, 2), (1, 1)):
            yield cls(n, m=m)
            yield cls(n, m=m, allowed=True)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Logits on a grid, so that there are equal ones; every filter takes something away. The second of m rows is left
        out."""
        if self.m is None:
            return {"out": np.zeros(1, np.uint32), **self._row(rng)}
        rows = [self._row(rng) for _ in range(self.m)]
        given = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        given["settings"][1:2] = 0
        bits = {"allowed": some_allowed(rng, self.m, self.n)} if self.allowed else {}
        return {"out": np.full(self.m, 7, np.uint32), **given, **bits}

    def _row(self, rng: np.random.Generator) -> dict[str, Any]:
        x = (np.round(rng.standard_normal(self.n) * 16) / 8).astype(np.float32)
        return {
            "x": x,
            "settings": settings(0.8, max(self.n // 3, 1), 0.9, 0.02),
            "random": rng.integers(2**64, size=2, dtype=np.uint64),
        }


@dataclass(frozen=True)
class _Row:
    """What a row of logits is drawn by: x: f32[n]; out, settings and random begin with those of the row."""

    out: GlobalArray
    x: GlobalArray
    settings: GlobalArray
    random: GlobalArray


class _Search:
    """Finds where running sums reach a target: histograms of BINS bins, two a thread, in shared memory. A bin is two words of
    32 bits, of which the low one says what it carries: GPUs have no addition of 64 bits there, but a loop that tries until
    nobody was quicker, and most logits meet in few bins."""

    def __init__(self, k: KernelBuilder, each: Callable[[Callable[[Value, Value], None]], None]) -> None:
        self._k = k
        self._each = each
        self._low: SharedView = k.shared(U32, BINS)
        self._high: SharedView = k.shared(U32, BINS)
        self._totals: SharedView = k.shared(U64, WARPS)
        self._found: SharedView = k.shared(U64, 2)

    def __call__(
        self, bits: int, rank: Of, measure: Of, target: Callable[[Value], Value], more: tuple[Value, Value] | None = None
    ) -> tuple[Value, Value]:
        """The first rank, u32 of so many bits, up to which the measures sum to `target` of their total, and what the sum before
        that rank lacks, at least 1. Measures are u64, or u32 where all of them sum to less than 2^32. more: another rank and
        its measure. All threads must call it, and get the same."""
        k = self._k
        found, rest = k.u32(0), k.u64(0)
        levels = -(-bits // BIN_BITS)
        for level in k.strided(0, levels):
            shift = (levels - 1 - level) * BIN_BITS
            known = shift + BIN_BITS  # a shift by 32 or more leaves 0

            def add(place: Value, amount: Value, shift: Value = shift, known: Value = known) -> None:
                self._add((place >> shift) & (BINS - 1), amount, ((place >> known) == found) & (amount != 0))

            for half in (self._low, self._high):
                for place in range(2):
                    k.store(half[k.tid.x * 2 + place], 0)
            k.barrier()
            self._each(lambda index, x: add(rank(index, x), measure(index, x)))
            if more is not None:
                with k.when(k.tid.x == 0):
                    add(*more)
            k.barrier()
            first, second = (self._bin(k.tid.x * 2 + place) for place in range(2))
            before, total = self._before(first + second)
            k.assign(rest, k.select(level == 0, target(total), rest))
            self._publish(before, rest, k.tid.x * 2, first)
            self._publish(before + first, rest, k.tid.x * 2 + 1, second)
            k.barrier()
            k.assign(found, (found << BIN_BITS) | k.u32(k.load(self._found[0])))
            k.assign(rest, k.load(self._found[1]))
        return found, rest

    def _add(self, digit: Value, amount: Value, counts: Value) -> None:
        """Add to a bin, where `counts` holds."""
        k, low = self._k, self._low[digit]
        if amount.type == U32:
            self._count(low, amount, counts)
            return
        with k.when(counts):
            word = k.u32(amount)
            (before,) = k.write("atom", [low.address, word], modifiers={"space": "shared", "op": "add", "type": "u32"})
            rest = k.u32(amount >> 32) + k.select(before > ~word, k.u32(1), 0)
            self._count(self._high[digit], rest, rest != 0)

    def _count(self, place: Element, amount: Value, counts: Value) -> None:
        self._k.write("red", [place.address, amount], modifiers={"space": "shared", "op": "add", "type": "u32"}, guard=counts)

    def _bin(self, digit: Value) -> Value:
        """What was added to a bin."""
        k = self._k
        return (k.u64(k.load(self._high[digit])) << 32) | k.u64(k.load(self._low[digit]))

    def _publish(self, before: Value, rest: Value, digit: Value, amount: Value) -> None:
        """Say that the sum is reached in this bin, in the one thread that has it."""
        k = self._k
        with k.when((before < rest) & (rest <= before + amount)):
            k.store(self._found[0], k.u64(digit))
            k.store(self._found[1], rest - before)

    def _before(self, value: Value) -> tuple[Value, Value]:
        """The sum of the values of all threads before, and of all."""
        k = self._k
        sums = self._running(value)
        with k.when(k.lane == WARP_SIZE - 1):
            k.store(self._totals[k.warp], sums)
        k.barrier()
        warps = self._running(k.load(self._totals[k.lane]))
        earlier = k.shuffle(warps, k.select(k.warp > 0, k.warp - 1, 0))
        return sums - value + k.select(k.warp > 0, earlier, 0), k.shuffle(warps, WARP_SIZE - 1)

    def _running(self, value: Value) -> Value:
        """The sum of a warp's values up to each lane."""
        k, offset = self._k, 1
        while offset < WARP_SIZE:
            inside = k.lane >= offset
            other = k.shuffle(value, k.select(inside, k.lane - offset, 0))
            value, offset = value + k.select(inside, other, 0), 2 * offset
        return value


def _turned(index: Value) -> Value:
    """The place of an id in the draw, and the id of a place: the remainder by LANES comes first."""
    return ((index & (LANES - 1)) << BIN_BITS) | (index >> BIN_BITS)


def _weight(k: KernelBuilder, x: Value) -> Value:
    """u64: `weights` of ptxgen.kernels.token.sampling, operation for operation."""
    inside = k.max(x, LOWEST)
    rounded = inside * math.log2(math.e) + ROUNDER
    power = rounded - ROUNDER
    r = (inside - power * LN2_HIGH) - power * LN2_LOW
    tail = k.f32(EXP_TAIL[-1])
    for coefficient in EXP_TAIL[-2::-1]:
        tail = tail * r + coefficient
    mantissa = (tail * (r * r) + r) + 1.0
    whole = k.u64(k.u32(mantissa * float(2**MANTISSA_BITS))) << (UNIT_BITS - MANTISSA_BITS)
    return whole >> k.bits(ROUNDER_BITS - k.bits(rounded, S32), U32)
