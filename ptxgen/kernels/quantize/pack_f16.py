"""The kernel that makes the f16 split of activations, f32 activations for f16 tensor cores; `write_f16_split` for the kernels
that do it to values of their own. What its parts mean is said in f16_split.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray, Index, SharedView
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.quantize.f16_split import PEAK_EXPONENT, STEPS, SUMMED, TILE, WINDOW, arrays, pack, unwritten
from ptxgen.kernels.quantize.quantize import magnitude
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.target import WARP_SIZE
from ptxgen.types import B32, F16, F32, U32

LANES = STEPS
"""Lanes side by side that have a window of a row: each has the 16 values of a step, in four runs of four."""

RUN = 4
"""Values in a row of a lane: one 16-byte load."""

THREADS = TILE * LANES

INFINITY = 0x7F800000
"""As bits."""


@register
@dataclass(frozen=True)
class PackF16(KernelType):
    """Activations as f16 for tensor cores, one or two for each, with a scale for every 256 and the sums of every 16.

    x: f32[m, k] -> halves: f16[ceil(m / 8), ceil(k / 256), 17, parts, 2, 8, 8]; scales: f32[m, ceil(k / 256)], powers of two.
    x ~ scale * half (parts=1) or scale * (half + half) (parts=2). Where which value stands, and what is made of zeros,
    infinities and NaN: f16_split.pack. k is a multiple of 4; lane_run is 64 or 4."""

    name = "pack_halves"
    m: int
    k: int
    parts: int
    lane_run: int

    family = "quantize"
    least_sm = 80

    def __post_init__(self) -> None:
        require(self, "m", high=TILE * MOST_ROWS)
        require(self, "k", multiple=RUN)
        assert self.form  # checks parts and lane_run

    @property
    def form(self) -> HalfForm:
        """In which form it writes them."""
        return HalfForm(self.parts, self.lane_run)

    def signature(self) -> Signature:
        return {**arrays(self.m, self.k, self.form, "out"), "x": read(F32, self.m, self.k)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(-(-self.k // WINDOW), -(-self.m // TILE)), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        window, row = k.ctaid.x, k.ctaid.y * TILE + k.tid.x // LANES
        runs = lane_runs(k, self.form, row, window, self.m, self.k)
        write_f16_split(k, self.form, row, window, [x for run in runs for x in run.or_zeros(k, run.load(k, k.arg.x))])

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return pack(arguments["x"], self.form)._asdict()

    def tolerance(self, **_: Any) -> Mapping[str, float]:
        """Nothing but correctly rounded operations in a fixed order."""
        return {"halves": 0.0, "scales": 0.0}

    def work(self) -> Work:
        """A product and, but for the last part, a subtraction of each value, and its addition to a sum."""
        size = self.m * self.k
        return Work(flops=size * (1 + self.parts), bytes=F32.bytes * size + _written(self))

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Normal activations, with one channel that is massive, and some zeros and some of the largest f16 wherever there is
        room."""
        x = rng.standard_normal((self.m, self.k)).astype(np.float32)
        x[:, 0] = OUTLIER
        x[:, 256:300] = 65504.0
        x[:, 512:768] = 0.0
        return {**unwritten(self.m, self.k, self.form), "x": x}

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[PackF16]:
        yield cls(m=3, k=800, parts=2, lane_run=64)
        yield cls(m=17, k=576, parts=2, lane_run=4)
        yield cls(m=8, k=256, parts=1, lane_run=64)
        yield cls(m=1, k=4, parts=1, lane_run=4)


def _written(kernel: PackF16) -> int:
    return sum(array.nbytes for array in arrays(kernel.m, kernel.k, kernel.form, "out").values())


@dataclass(frozen=True)
class LaneRun:
    """Four values side by side that a lane has of an array f32[m, size], none of which there are past its rows or past their
    end."""

    row: Value
    place: Value
    """Of the first of them in the row."""
    loaded: tuple[Value, Value]
    """Row and place to load from: the last that there are for those past the end, because a load in a branch would wait for the
    one before."""
    live: Value | None
    """Whether they are in the array; None if all are."""

    def load(self, k: KernelBuilder, array: GlobalArray) -> tuple[Value, ...]:
        """What the array has there, or values that are not to be used."""
        return k.load_vector(array[self.loaded], RUN)

    def store(self, k: KernelBuilder, array: GlobalArray, values: Sequence[Value]) -> None:
        """Write the values if the array has them."""
        with nullcontext() if self.live is None else k.when(self.live):
            k.store(array[self.row, self.place], values)

    def or_zeros(self, k: KernelBuilder, values: Sequence[Value]) -> Sequence[Value]:
        """The values, or zeros if the array does not have them."""
        return values if self.live is None else [k.select(self.live, value, 0.0) for value in values]


def lane_runs(k: KernelBuilder, form: HalfForm, row: Value, window: Value, m: int, size: int) -> list[LaneRun]:
    """The lane's four runs of a window of a row, both of which it shares with 15 lanes, of an array f32[m, size]."""
    line = k.min(row, m - 1) if m % TILE else row
    runs = []
    for start in run_starts(k, form):
        place = window * WINDOW + start
        inside = k.min(place, size - RUN) if size % WINDOW else place
        live = (row < m) & (place < size) if m % TILE or size % WINDOW else None
        runs.append(LaneRun(row, place, (line, inside), live))
    return runs


def run_starts(k: KernelBuilder, form: HalfForm) -> list[Value]:
    """Where the lane's four runs of four values start in the window that it shares with 15 others."""
    step = k.lane & (LANES - 1)
    if form.lane_run == 4:
        return [step * (4 * RUN) + t * RUN for t in range(4)]
    return [step * RUN + t * form.lane_run for t in range(4)]


def write_staged_f16_split(k: KernelBuilder, form: HalfForm, row: Index, first: Index, count: int, staged: SharedView) -> None:
    """Write what stands for `count` windows of a row from the window `first` on, as far as the row has them. staged: f32[256
    count], zeros where the row has no value, stored by threads that have met at a barrier since. All threads must come here."""
    windows = k.arg.scales.shape[1]
    with k.when(k.warp < -(-count * LANES // WARP_SIZE)):
        own = k.tid.x // LANES
        window = first + own
        place = (own if count % (WARP_SIZE // LANES) == 0 else k.min(own, count - 1)) * WINDOW
        xs = [x for start in run_starts(k, form) for x in k.load_vector(staged[place + start], RUN)]
        write_f16_split(k, form, row, window, xs, (own < count) & (k.u32(window) < windows))


def write_f16_split(
    k: KernelBuilder, form: HalfForm, row: Index, window: Index, xs: Sequence[Value], live: Value | None = None
) -> None:
    """Write what stands for a window of a row to k.arg.halves and, if there is such a row, to k.arg.scales, where `live` holds.

    xs: the lane's 16 values, its runs (`run_starts`) one after the other, zeros past the end of the row and for a row past the
    last. 16 lanes side by side have a window, and for all of them `live` is the same; all lanes of the warp must come here.
    Every kernel that makes an f16 split makes it here, so the bits are the same."""
    peak = magnitude(k, xs[0])
    for x in xs[1:]:
        peak = k.max(peak, magnitude(k, x))
    peak = k.warp_max(peak, width=LANES)
    exponent = k.max(peak >> 23, PEAK_EXPONENT + 1) - PEAK_EXPONENT
    usable = peak < INFINITY
    inverse = k.bits((254 - exponent) << 23, F32)
    ratios = [k.select(usable, x * inverse, 0.0) for x in xs]
    parts = list(_parts(k, form, [(ratios[at], ratios[at + 2]) for at in _FIRSTS]))
    sum, number = _sum(k, form, ratios)
    sums = list(_sum_parts(k, form, sum))
    step, tile, place = k.lane & (LANES - 1), row // TILE, row % TILE
    scale = k.select(usable, k.select(peak == 0, 127, exponent) << 23, peak)
    with nullcontext() if live is None else k.when(live):
        for part, words in enumerate(parts):
            for c in range(2):
                target = k.arg.halves[tile, window, step, part, c, place, 0]
                k.store(replace(target, dtype=U32), [k.bits(word, U32) for word in words[4 * c : 4 * c + 4]])
        t, i = number >> 2, number & 3
        for part, half in enumerate(sums):
            k.store(k.arg.halves[tile, window, STEPS, part, i & 1, place, t * 2 + (i >> 1)], half)
        with k.when((step == 0) & (k.u32(row) < k.arg.scales.shape[0])):
            k.store(k.arg.scales[row, window], k.bits(scale, F32))


_FIRSTS = [4 * t + c for c in range(2) for t in range(4)]
"""Of the lane's 16 values the first of each pair, the other of which is two places on; in the order of the stores."""


def _parts(k: KernelBuilder, form: HalfForm, pairs: Sequence[tuple[Value, Value]]) -> Iterator[list[Value]]:
    """Pairs of f32 as pairs of f16, the first lower, part by part."""
    for part in range(form.parts):
        words = [k.op("cvt", second, first, to="f16x2") for first, second in pairs]
        yield words
        if part + 1 < form.parts:
            halves = [k.write("mov", [k.bits(word, B32)], result=F16) for word in words]
            pairs = [
                (first - k.f32(low), second - k.f32(high)) for (first, second), (low, high) in zip(pairs, halves, strict=True)
            ]


def _sum_parts(k: KernelBuilder, form: HalfForm, sum: Value) -> Iterator[Value]:
    for _ in range(form.parts):
        half = k.convert(sum, F16)
        yield half
        sum = sum - k.f32(half)


def _sum(k: KernelBuilder, form: HalfForm, ratios: Sequence[Value]) -> tuple[Value, Value]:
    """The sum that this lane writes, one of the window's sixteen, and its number among them. Added by pairs of neighbours."""
    step = k.lane & (LANES - 1)
    sums = [(a + b) + (c + d) for a, b, c, d in (ratios[at : at + RUN] for at in range(0, len(ratios), RUN))]
    if form.lane_run == 4:
        a, b, c, d = sums
        return (a + b) + (c + d), step
    # Four lanes have the runs of a sum for each of the quad's lanes; all of them add all four, and each keeps another.
    for offset in (1, 2):
        sums = [sum + k.shuffle_xor(sum, offset) for sum in sums]
    mine, rest = step % (SUMMED // RUN), sums[0]
    for t in range(1, 4):
        rest = k.select(mine == t, sums[t], rest)
    return rest, mine * 4 + step // (SUMMED // RUN)
