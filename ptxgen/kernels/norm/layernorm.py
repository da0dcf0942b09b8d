"""LayerNorm of rows: as f32, one block a row; as int8 planes or f16 split, a block a chunk of a row. A thread keeps its share
of the row in registers between the mean and the squares of the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT, gamma, with_outlier
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW, root_units
from ptxgen.kernels.norm.row import THREADS, NormRow, scaled
from ptxgen.kernels.norm.split_rows import chunk_launch, in_array, write_chunk
from ptxgen.kernels.quantize.forms import F16Split, Int8Planes, OutputForm, form_name, form_of, require_form
from ptxgen.kernels.quantize.quantize import write_planes
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.types import F32

TREE: Final = 10
"""Additions that the sum of a thread goes through in that of the block, and more."""

Held = tuple[Value, Value, list[Value]]
"""Where a thread's values of a chunk start, whether they are in the row, and the values."""


@register(digits=[None], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[GIVEN], m=[None, GIVEN], parts=[None], lane_run=[None])
@register(digits=[None], m=[GIVEN], parts=[GIVEN], lane_run=[GIVEN])
@dataclass(frozen=True)
class LayerNorm(KernelType):
    """y = gamma * (x - mean(x)) / sqrt(var(x) + eps) + beta of each row, and, if asked for, y as int8 planes or f16 split.

    y, x: f32[rows, hidden], rows = m or 1; gamma: f32[hidden], none unless `weighted`; beta: f32[hidden], none unless `bias`;
    eps: f32 scalar. var is the mean square of the differences. A row has the same bits whatever m and the form are.

    With digits: digits: s8[rows, digits, hidden]; scales: f32[rows, hidden / 32]; sums: s32[rows, hidden / 32]: what
    q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of y; hidden is a multiple of 32. With parts and lane_run:
    halves: f16[ceil(m / 8), ceil(hidden / 256), 17, parts, 2, 8, 8]; scales: f32[m, ceil(hidden / 256)]: what pack_halves makes
    of y; hidden is a multiple of 4.

    From a standard deviation of sqrt(3.4e38 / hidden) on the sum of squares is infinite and the row becomes beta."""

    family: ClassVar[str] = "norm"
    hidden: int
    weighted: bool = field(default=True, kw_only=True)
    bias: bool = field(default=False, kw_only=True)
    digits: int | None = field(default=None, kw_only=True)
    m: int | None = field(default=None, kw_only=True)
    parts: int | None = field(default=None, kw_only=True)
    lane_run: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_form(self, "hidden", high=LARGEST_ROW)
        if self.bias and not self.weighted:
            raise ArgumentError(f"{self.name}: a bias needs a weight, got {self.weighted=}")

    @property
    def name(self) -> str:
        return form_name("layernorm", self)

    @property
    def form(self) -> OutputForm | None:
        """In which form y is written beside f32."""
        return form_of(self)

    @property
    def least_sm(self) -> int:
        return super().least_sm if self.form is None else self.form.least_sm

    @property
    def rows(self) -> int:
        """Rows that are normalised, each by itself and all with the same gamma and beta."""
        return 1 if self.m is None else self.m

    @property
    def row(self) -> NormRow:
        """How threads share a row."""
        return NormRow(self.hidden)

    @property
    def _factors(self) -> tuple[str, ...]:
        """The arguments that all rows share."""
        return ("gamma",) * self.weighted + ("beta",) * self.bias

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.rows, self.hidden),
            **(self.form.arrays(self.rows, self.hidden) if self.form else {}),
            "x": read(F32, self.rows, self.hidden),
            **{name: read(F32, self.hidden) for name in self._factors},
            "eps": Scalar(F32, low=0.0),
        }

    def launch(self) -> LaunchConfig:
        if isinstance(self.form, F16Split):
            return chunk_launch(self.row, self.rows)
        return LaunchConfig(grid=self.rows if self.form is None else (self.row.chunks, self.rows), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        match self.form:
            case Int8Planes(count):
                number = 0 if self.m is None else k.ctaid.y
                start, inside, results = self._chunk(k, k.arg.x.at(number, 0))
                with k.when(inside):
                    k.store(k.arg.y[number, start], results)
                write_planes(k, count, number, start, results, inside)
            case F16Split(form):
                start, inside, results = self._chunk(k, k.arg.x.at(in_array(k, k.ctaid.y, self.rows), 0))
                write_chunk(k, form, start, inside & (k.ctaid.y < self.rows), results)
            case _:
                self._write_row(k)

    def _write_row(self, k: KernelBuilder) -> None:
        """The block's row."""
        y, held = k.arg.y.at(k.ctaid.x, 0), self._held(k, k.arg.x.at(k.ctaid.x, 0))
        factors = [self._factors_at(k, start) for start, _, _ in held]
        mean, scale = self._moments(k, held)
        for (start, inside, values), own in zip(held, factors, strict=True):
            results = self._results(k, values, mean, scale, own)
            with k.when(inside):
                k.store(y[start], results if self.row.width > 1 else results[0])

    def _chunk(self, k: KernelBuilder, x: GlobalArray) -> Held:
        """The block's chunk of a row: where the thread's results start, whether they are in the row, and the results. Each
        block sums the whole row, so that no block waits for another."""
        start, inside = self.row.place(k, k.ctaid.x)
        values, factors = self.row.load(k, x, start), self._factors_at(k, start)
        mean, scale = self._moments(k, self._held(k, x))
        return start, inside, self._results(k, values, mean, scale, factors)

    def _held(self, k: KernelBuilder, x: GlobalArray) -> list[Held]:
        """The thread's values of each chunk of a row."""
        places = [self.row.place(k, chunk) for chunk in range(self.row.chunks)]
        return [(start, inside, self.row.load(k, x, start)) for start, inside in places]

    def _moments(self, k: KernelBuilder, held: Sequence[Held]) -> tuple[Value, Value]:
        """The mean of the row, and 1 / sqrt(var + eps)."""
        total, squares = k.f32(0.0), k.f32(0.0)
        for _, inside, values in held:
            self.row.add_values(k, total, values, inside)
        mean = self.row.mean(k.block_sum(total))
        for _, inside, values in held:
            self.row.add_squares(k, squares, [value - mean for value in values], inside)
        return mean, self.row.inverse_root(k, k.block_sum(squares))

    def _factors_at(self, k: KernelBuilder, start: Value) -> list[list[Value]]:
        """The thread's gammas and betas of a chunk that starts there, as far as there are any."""
        arrays = [getattr(k.arg, name) for name in self._factors]
        for array in arrays:
            self.row.prefetch(k, array, start)
        return [self.row.load(k, array, start) for array in arrays]

    def _results(
        self, k: KernelBuilder, values: Sequence[Value], mean: Value, scale: Value, factors: Sequence[list[Value]]
    ) -> list[Value]:
        differences = [value - mean for value in values]
        if not self.bias:
            return scaled(differences, scale, factors[0] if self.weighted else None)
        gammas, betas = factors
        return [
            k.fma(value, factor, beta)
            for value, factor, beta in zip(scaled(differences, scale, None), gammas, betas, strict=True)
        ]

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        y = self._exact(arguments)[0]
        return {"y": y, **(self.form.reference(y) if self.form else {})}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """The mean is off by `shift` at most, which all differences share, and each is rounded: `off`. The shift adds its
        square to the variance; the rounded differences add two units to each of its terms, of which the root halves both.
        Then come two products and, with a bias, one addition in the place of the second. A form is that of any y so near."""
        y, plain, difference, root = self._exact(arguments)
        chain = self.row.chunks * self.row.width
        shift = gamma(chain + TREE + 1) * np.abs(arguments["x"].astype("f8")).mean(axis=-1, keepdims=True)
        off = shift + UNIT * (np.abs(difference) + shift)
        relative = (root_units(chain=chain, tree=TREE) + 1 + 2) * UNIT + (shift * root) ** 2 / 2
        factor = np.abs(arguments["gamma"].astype("f8")) if self.weighted else 1.0
        bound = np.abs(plain) * relative + factor * root * off * (1 + relative) + 2.0**-148
        if self.bias:
            bound = bound + UNIT * (np.abs(y) + bound)
        return {"y": bound, **(self.form.bounds(y, bound) if self.form else {})}

    def _exact(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.float64], ...]:
        """y, y without beta, x - mean and 1 / sqrt(var + eps), in float64."""
        x = arguments["x"].astype(np.float64)
        difference = x - x.mean(axis=-1, keepdims=True)
        root = 1 / np.sqrt((difference**2).mean(axis=-1, keepdims=True) + float(arguments["eps"]))
        plain = difference * root * (arguments["gamma"].astype(np.float64) if self.weighted else 1.0)
        return plain + (arguments["beta"].astype(np.float64) if self.bias else 0.0), plain, difference, root

    def work(self) -> Work:
        """In a form, that of making it without reading y again."""
        values = self.rows * self.hidden
        more = self.form.work(self.rows, self.hidden) if self.form else Work(0, 0)
        flops = (5 + len(self._factors)) * values + more.flops
        return Work(flops, F32.bytes * (2 * values + len(self._factors) * self.hidden) + more.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(576, bias=True)
        yield cls(257)
        yield cls(1026, weighted=False)
        yield cls(LARGEST_ROW, bias=True)
        yield cls(257, m=3, bias=True)
        yield cls(1056, digits=2, bias=True)
        yield cls(160, digits=3, m=2)
        yield cls(1312, m=3, parts=2, lane_run=64, bias=True)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """With a mean that is not small beside the deviation."""
        return {
            "y": np.zeros((self.rows, self.hidden), np.float32),
            "x": with_outlier(rng, self.rows, self.hidden) + np.float32(2.5),
            **({"gamma": rng.normal(1.0, 0.3, self.hidden).astype(np.float32)} if self.weighted else {}),
            **({"beta": rng.standard_normal(self.hidden, np.float32)} if self.bias else {}),
            "eps": np.float32(1e-5),
            **(self.form.unwritten(self.rows, self.hidden) if self.form else {}),
        }
