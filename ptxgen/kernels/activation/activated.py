"""The base of kernels that activate. Their result may be written in the forms that products read: one launch, with the bits of
the plain kernel and the kernel that makes the form one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HalfForm, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.activation.element import Elementwise
from ptxgen.kernels.activation.functions import Activation
from ptxgen.kernels.quantize.f16_split import TILE, WINDOW, tiles_of, windows_of
from ptxgen.kernels.quantize.forms import F16Split, Int8Planes, OutputForm, form_name, form_of, require_form
from ptxgen.kernels.quantize.pack_f16 import LANES, RUN, lane_runs, write_f16_split, write_staged_f16_split
from ptxgen.kernels.quantize.quantize import write_planes
from ptxgen.types import F32

THREADS: Final = 128
"""Of a block that writes a form: one thread a value, since the divisions of a thread follow one another."""

MANY_ROWS: Final = 32
"""From so many rows on tiles of them, 16 values a lane, are enough work for a GPU; fewer rows are spread over more threads, one
a value, to be done sooner."""


@dataclass(frozen=True)
class Activated(Elementwise):
    """y = function(x), or function(gate) * up, f32[n] or f32[m, n]; or y and its int8 planes; or the f16 split of y alone.
    rows = m or 1. A subclass says which function, and by its sources whether it is gated.

    With digits: digits: s8[rows, digits, n]; scales: f32[rows, n / 32]; sums: s32[rows, n / 32]: what q8_quantize (digits=1),
    q16_quantize (2) or q24_quantize (3) make of y; n is a multiple of 32. With parts and lane_run: halves: f16[ceil(m / 8),
    ceil(n / 256), 17, parts, 2, 8, 8]; scales: f32[m, ceil(n / 256)]: what pack_halves makes of y; n is a multiple of 4."""

    result = "y"
    sources: ClassVar[tuple[str, ...]] = ("x",)
    digits: int | None = field(default=None, kw_only=True)
    m: int | None = field(default=None, kw_only=True)
    parts: int | None = field(default=None, kw_only=True)
    lane_run: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_form(self, "n")

    @property
    @abstractmethod
    def function(self) -> Activation:
        """What activates the first source. A class attribute where the class has one."""

    @property
    def name(self) -> str:
        return form_name(self.operation, self)

    @property
    def flops(self) -> int:
        return self.function.flops + len(self.sources) - 1

    def computed(self, k: KernelBuilder, first: Sequence[Value], *factors: Sequence[Value]) -> list[Value]:
        """Write what makes several elements of y, from those of each source, without a branch."""
        results = self.function.of_each(k, first)
        for column in factors:
            results = [result * factor for result, factor in zip(results, column, strict=True)]
        return results

    def compute(self, k: KernelBuilder, *values: Value) -> Value:
        return self.computed(k, *([value] for value in values))[0]

    def exact(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        first, *factors = values
        result = self.function.exact(first)
        for factor in factors:
            result = result * factor
        return result

    def bound(self, *values: NDArray[np.float64]) -> NDArray[np.float64]:
        """That of the activation, and one unit for each product."""
        first, *factors = values
        bound = self.function.bound(first)
        for factor in factors:
            bound = bound * np.abs(factor)
        return bound + np.abs(self.exact(*values)) * (UNIT * len(factors))

    @property
    def form(self) -> OutputForm | None:
        """In which form y is written; None: as f32 alone."""
        return form_of(self)

    @property
    def least_sm(self) -> int:
        return super().least_sm if self.form is None else self.form.least_sm

    @property
    def rows(self) -> int:
        """Rows of values, each in its form by itself."""
        return 1 if self.m is None else self.m

    @property
    def _writes_y(self) -> bool:
        return self.form is None or isinstance(self.form, Int8Planes)

    def signature(self) -> Signature:
        return {
            **({"y": write(F32, *self.shape)} if self._writes_y else {}),
            **(self.form.arrays(self.rows, self.n) if self.form else {}),
            **{name: read(F32, *self.shape) for name in self.sources},
        }

    def launch(self) -> LaunchConfig:
        if self.form is None:
            return super().launch()
        if isinstance(self.form, Int8Planes):
            return LaunchConfig(grid=(-(-self.n // THREADS), self.rows), block=THREADS)
        if self.rows >= MANY_ROWS:
            return LaunchConfig(grid=(windows_of(self.n), tiles_of(self.rows)), block=TILE * LANES)
        return LaunchConfig(grid=(windows_of(self.n), TILE * tiles_of(self.rows)), block=WINDOW)

    def emit(self, k: KernelBuilder) -> None:
        match self.form:
            case Int8Planes(count):
                self._write_planes(k, count)
            case F16Split(form) if self.rows >= MANY_ROWS:
                self._write_tile(k, form)
            case F16Split(form):
                self._write_window(k, form)
            case _:
                super().emit(k)

    def _write_planes(self, k: KernelBuilder, digits: int) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        live = i < self.n
        # Threads past the end compute the last value again, because shuffles need whole warps.
        place = k.min(i, self.n - 1)
        row, index = (0, place) if self.m is None else (k.ctaid.y, (k.ctaid.y, place))
        y = self.computed(k, *([k.load(getattr(k.arg, name)[index])] for name in self.sources))[0]
        with k.when(live):
            k.store(k.arg.y[index], y)
        write_planes(k, digits, row, place, [y], live)

    def _write_tile(self, k: KernelBuilder, form: HalfForm) -> None:
        """A window of eight rows, two of them a warp, so that its stores fill whole sectors. A lane makes the 16 values that it
        packs: their loads are on the way together, and their exponentials are computed side by side."""
        row, window = k.ctaid.y * TILE + k.tid.x // LANES, k.ctaid.x
        runs = lane_runs(k, form, row, window, self.rows, self.n)
        loaded = ([value for run in runs for value in run.load(k, getattr(k.arg, name))] for name in self.sources)
        values = iter(self.computed(k, *loaded))
        write_f16_split(k, form, row, window, [x for run in runs for x in run.or_zeros(k, list(islice(values, RUN)))])

    def _write_window(self, k: KernelBuilder, form: HalfForm) -> None:
        """A window of a row: a thread computes a value, and the first lanes pack what all have staged."""
        row, place = k.ctaid.y, k.ctaid.x * WINDOW + k.tid.x
        live = (row < self.rows) & (place < self.n)
        staged = k.shared(F32, WINDOW)
        value = k.f32(0.0)
        with k.when(live):
            value @= self.computed(k, *([k.load(getattr(k.arg, name)[row, place])] for name in self.sources))[0]
        k.store(staged[k.tid.x], value)
        k.barrier()
        write_staged_f16_split(k, form, row, k.ctaid.x, 1, staged)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        y = super().reference(**arguments)["y"]
        in_form = self.form.reference(y.reshape(self.rows, self.n)) if self.form else {}
        return ({"y": y} if self._writes_y else {}) | in_form

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """What the bound of y lets the form be."""
        y, bound = super().reference(**arguments)["y"], np.asarray(super().tolerance(**arguments)["y"])
        shape = self.rows, self.n
        in_form = self.form.bounds(y.reshape(shape), bound.reshape(shape)) if self.form else {}
        return ({"y": bound} if self._writes_y else {}) | in_form

    def work(self) -> Work:
        """That of y, and of the form without reading y again."""
        arrays = len(self.sources) + self._writes_y
        more = self.form.work(self.rows, self.n) if self.form else Work(0, 0)
        return Work(flops=self.flops * self.size + more.flops, bytes=F32.bytes * self.size * arrays + more.bytes)

    @classmethod
    def form_cases(cls, **fixed: Any) -> Iterator[KernelType]:
        """A small shape of each form."""
        yield cls(160, digits=2, **fixed)
        yield cls(96, digits=3, m=2, **fixed)
        yield cls(260, m=3, parts=2, lane_run=64, **fixed)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        inputs = super().inputs(rng)
        if not self._writes_y:
            del inputs["y"]
        return inputs | (self.form.unwritten(self.rows, self.n) if self.form else {})
