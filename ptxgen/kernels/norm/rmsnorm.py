"""RMSNorm of rows: as f32, one block a row, which stays in registers between the two passes; as int8 planes, whose scales are
multiplied by what a row is normalised with, so that they may be made before the row is complete; and as f16 split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT, with_outlier
from ptxgen.kernels.norm.row import THREADS, NormRow, scaled
from ptxgen.kernels.norm.split_rows import MANY_ROWS, SplitRows
from ptxgen.kernels.norm.squares import GROUP_TREE, inverse_root, row_squares, total_chain
from ptxgen.kernels.quantize.forms import F16Split, Int8Planes, OutputForm, form_name, form_of, require_form
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.quantize.quantize import write_planes
from ptxgen.kernels.registry import GIVEN, Given, register
from ptxgen.types import F32

LARGEST_ROW = 16384  # values; a thread holds 64 of them and their gammas in registers


@register(weighted=[True], residual=[False, True], digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(weighted=[False], residual=[False], digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(weighted=[True], residual=[False], digits=[Given(2)], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(weighted=[True], residual=[False], digits=[None], m=[GIVEN], parts=[GIVEN], lane_run=[GIVEN])
@dataclass(frozen=True)
class RmsNorm(KernelType):
    """y = gamma * x / sqrt(mean(x^2) + eps) of each row, and, if asked for, y as int8 planes or as f16 split.

    y, x: f32[rows, hidden], rows = m or 1; gamma: f32[hidden]; eps: f32 scalar, an argument so that no cached kernel can hold a
    wrong one. A row has the same bits whatever m is.

    Not weighted: without gamma. residual: y += the result, in place, with the bits of rmsnorm and residual_add: the norm after
    attention or after a feed-forward network. Both are for f32 alone.

    With digits: digits: s8[rows, digits, hidden]; scales: f32[rows, hidden / 32]; sums: s32[rows, hidden / 32]; hidden is a
    multiple of 32. They are those of gamma * x, rounded to f32, and a scale is theirs times 1 / sqrt(mean(x^2) + eps), rounded
    once more; the squares are added as told in squares.py. Each block makes the results of 1024 values, so that gamma, results
    and planes are the work of several multiprocessors.

    With parts and lane_run (see HalfForm): halves: f16[ceil(m / 8), ceil(hidden / 256), 17, parts, 2, 8, 8]; scales: f32[m,
    ceil(hidden / 256)]; hidden is a multiple of 4. Rows past the last of a tile are split, too: zeros.

    The squares are summed in f32, whose largest value is 3.4e38: from a root mean square of sqrt(3.4e38 / hidden) on (1.8e19 at
    hidden=1, 2.9e17 at 4096) the sum is infinite and the row becomes zeros.
    """

    family: ClassVar[str] = "norm"
    hidden: int
    weighted: bool = field(default=True, kw_only=True, metadata=HIDDEN)
    residual: bool = field(default=False, kw_only=True, metadata=HIDDEN)
    digits: int | None = field(default=None, kw_only=True)
    m: int | None = field(default=None, kw_only=True)
    parts: int | None = field(default=None, kw_only=True)
    lane_run: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_form(self, "hidden", high=LARGEST_ROW)
        if (not self.weighted) + self.residual + (self.form is not None) > 1:
            raise ArgumentError(
                f"{self.name}: not weighted, residual and a form exclude each other, got {self.weighted=}, {self.residual=}, "
                f"{self.form}"
            )

    @property
    def name(self) -> str:
        return form_name(f"{'' if self.weighted else 'unweighted_'}rmsnorm{'_residual' if self.residual else ''}", self)

    @property
    def form(self) -> OutputForm | None:
        """In which form y is written beside f32."""
        return form_of(self)

    @property
    def least_sm(self) -> int:
        return super().least_sm if self.form is None else self.form.least_sm

    @property
    def rows(self) -> int:
        """Rows that are normalised, each by itself and all with the same gamma."""
        return 1 if self.m is None else self.m

    @property
    def row(self) -> NormRow:
        """How threads share a row."""
        return NormRow(self.hidden)

    @property
    def _split(self) -> SplitRows | None:
        return SplitRows(self.hidden, self.rows, self.form.form) if isinstance(self.form, F16Split) else None

    def signature(self) -> Signature:
        return {
            "y": (update if self.residual else write)(F32, self.rows, self.hidden),
            **(self.form.arrays(self.rows, self.hidden) if self.form else {}),
            "x": read(F32, self.rows, self.hidden),
            **({"gamma": read(F32, self.hidden)} if self.weighted else {}),
            "eps": Scalar(F32, low=0.0),
        }

    def launch(self) -> LaunchConfig:
        if self._split is not None:
            return self._split.launch()
        return LaunchConfig(grid=self.rows if self.digits is None else (self.row.chunks, self.rows), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        if self._split is not None:
            self._split.emit(k)
        elif self.digits is not None:
            self._write_planes(k, self.digits)
        else:
            self._write_row(k)

    def _write_row(self, k: KernelBuilder) -> None:
        """The block's row."""
        x, y = k.arg.x.at(k.ctaid.x, 0), k.arg.y.at(k.ctaid.x, 0)
        total, row = k.f32(0.0), self.row
        held: list[tuple[Value, Value, list[Value], list[Value] | None, list[Value]]] = []
        for chunk in range(row.chunks):
            start, inside = row.place(k, chunk)
            if self.weighted:
                row.prefetch(k, k.arg.gamma, start)
            values = row.load(k, x, start)
            gammas = row.load(k, k.arg.gamma, start) if self.weighted else None
            held.append((start, inside, values, gammas, row.load(k, y, start) if self.residual else []))
            row.add_squares(k, total, values, inside)
        scale = row.inverse_root(k, k.block_sum(total))
        for start, inside, values, gammas, before in held:
            results = scaled(values, scale, gammas)
            if self.residual:
                results = [one + result for one, result in zip(before, results, strict=True)]
            with k.when(inside):
                k.store(y[start], results if row.width > 1 else results[0])

    def _write_planes(self, k: KernelBuilder, digits: int) -> None:
        """1024 values of a row."""
        number = 0 if self.m is None else k.ctaid.y
        start, inside = self.row.place(k, k.ctaid.x)
        self.row.prefetch(k, k.arg.gamma, start)
        values, gammas = (self.row.load(k, array, start) for array in (k.arg.x.at(number, 0), k.arg.gamma))
        scale = inverse_root(k, row_squares(k, k.arg.x.at(number, 0), self.hidden), self.hidden, k.arg.eps)
        with k.when(inside):
            k.store(k.arg.y[number, start], scaled(values, scale, gammas))
        weighted = [value * gamma for value, gamma in zip(values, gammas, strict=True)]
        write_planes(k, digits, number, start, weighted, inside, factor=scale)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """The planes of gamma * x are exact, since its rounding is."""
        x, eps = arguments["x"], float(arguments["eps"])
        gamma = arguments["gamma"] if self.weighted else np.ones(self.hidden, np.float32)
        y = rms_normalised(x.astype(np.float64), gamma.astype(np.float64), eps)
        if self.residual:
            y = y + arguments["y"]
        if not isinstance(self.form, Int8Planes):
            return {"y": y, **(self.form.reference(y) if self.form else {})}
        weighted = self.form.reference(x * gamma)
        factor = 1 / np.sqrt(np.mean(x.astype("f8") ** 2, axis=-1, keepdims=True) + eps)
        return {"y": y, **weighted, "scales": weighted["scales"] * factor}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """The f16 split is that of any value as near as y; a sum with y adds a rounding. A scale of int8 planes: the sum of
        squares, whose error the root halves, and one more product."""
        expected = self.reference(**arguments)
        if not isinstance(self.form, Int8Planes):
            added = arguments["y"].astype(np.float64) if self.residual else 0.0
            bound = rms_bound(expected["y"] - added, chain=self.row.chunks * self.row.width, tree=10)
            if self.residual:
                bound = bound + (np.abs(expected["y"]) + bound) * UNIT
            return {"y": bound, **(self.form.bounds(expected["y"], bound) if self.form else {})}
        tree = GROUP_TREE + 1 + total_chain(self.hidden // BLOCK)
        return {
            "y": rms_bound(expected["y"], chain=0, tree=tree),
            "digits": 0.0,
            "scales": np.abs(expected["scales"]) * (root_units(chain=0, tree=tree) + 1) * UNIT + 2.0**-148,
            "sums": 0.0,
        }

    def work(self) -> Work:
        """In a form, that of making it without reading y again."""
        values = self.rows * self.hidden
        more = self.form.work(self.rows, self.hidden) if self.form else Work(0, 0)
        arrays, factors = 2 + self.residual, self.hidden * self.weighted
        flops = (3 + self.weighted + self.residual) * values + more.flops
        return Work(flops, F32.bytes * (arrays * values + factors) + more.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        variant = {"weighted": fixed.get("weighted", True), "residual": fixed.get("residual", False)}
        if variant != {"weighted": True, "residual": False}:
            yield cls(576, **variant)
            yield cls(255, m=3, **variant)
            return
        for hidden in (576, 1, 255, 257, 896, 1026, 3584, LARGEST_ROW):
            yield cls(hidden)
        for hidden, m in ((4096, 3), (576, 8), (2048, 2), (257, 5), (1026, 1)):
            yield cls(hidden, m=m)
        for hidden, digits in ((576, 2), (2048, 1), (4096, 3), (160, 2), (LARGEST_ROW, 2)):
            yield cls(hidden, digits=digits)
        for hidden, digits, m in ((576, 2, 5), (1056, 3, 2)):
            yield cls(hidden, digits=digits, m=m)
        for hidden, m, parts, lane_run in ((1312, 3, 2, 64), (4, 1, 1, 4), (260, MANY_ROWS + 1, 2, 64)):
            yield cls(hidden, m=m, parts=parts, lane_run=lane_run)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "y": np.zeros((self.rows, self.hidden), np.float32),
            "x": with_outlier(rng, self.rows, self.hidden),
            **({"gamma": rng.normal(1.0, 0.3, self.hidden).astype(np.float32)} if self.weighted else {}),
            "eps": np.float32(1e-5),
            **({"y": rng.standard_normal((self.rows, self.hidden), np.float32)} if self.residual else {}),
            **(self.form.unwritten(self.rows, self.hidden) if self.form else {}),
        }


def rms_normalised(x: NDArray[np.float64], gamma: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    """RMSNorm over the last axis, in float64."""
    scaled: NDArray[np.float64] = gamma * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return scaled


def rms_bound(expected: NDArray[Any], *, chain: int, tree: int) -> NDArray[Any]:
    """Rounding bound of x * rsqrt(sum(x^2) / n + eps) * gamma in f32: that of `root_units`, and two products."""
    bound: NDArray[Any] = np.abs(expected) * (root_units(chain=chain, tree=tree) + 2) * UNIT + 2.0**-148
    return bound


def root_units(*, chain: int, tree: int) -> float:
    """Rounding bound of rsqrt(sum(x^2) / n + eps) in f32, in units of 2^-24 of it. The sum has no cancellation: each square
    meets at most `chain` fused additions and `tree` more, one unit each; the mean and eps add two; the root halves all of
    these; root and reciprocal add two. One unit more covers the terms of second order."""
    return (chain + tree + 2) / 2 + 2 + 1
