"""How the threads of a block share a row that is normalised: loads, sums, and what the row is multiplied by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptxgen.dsl import mathlib
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value

THREADS: Final = 256
"""That share a row."""


@dataclass(frozen=True)
class NormRow:
    """A row of f32[hidden]."""

    hidden: int

    @property
    def width(self) -> int:
        """Values of one load: rows must start at multiples of its size."""
        return next(width for width in (4, 2, 1) if self.hidden % width == 0)

    @property
    def chunks(self) -> int:
        """Loads a thread."""
        return -(-self.hidden // (THREADS * self.width))

    def place(self, k: KernelBuilder, chunk: int | Value, thread: Value | None = None) -> tuple[Value, Value]:
        """Where the values of a chunk start that a thread of a row has, and whether they are in the row. The idle threads of
        the last chunk get the last values of the row. thread: its number among THREADS, without one k.tid.x."""
        start = (k.tid.x if thread is None else thread) * self.width + chunk * (THREADS * self.width)
        inside = start < self.hidden
        return k.min(start, self.hidden - self.width), inside

    def load(self, k: KernelBuilder, array: Any, start: Value) -> list[Value]:
        """The thread's values of a chunk that starts there, of x or of gamma."""
        return list(k.load_vector(array[start], self.width)) if self.width > 1 else [k.load(array[start])]

    def prefetch(self, k: KernelBuilder, array: GlobalArray, start: Value) -> None:
        """Prefetch the thread's values of a chunk of gamma or beta into L2: they have usually been evicted since the last
        token, and the assembler loads them no sooner than they are needed."""
        k.prefetch(array[start].address, space="global", level="L2")

    def add_values(self, k: KernelBuilder, total: Value, values: Sequence[Value], inside: Value) -> None:
        """Add a chunk's values, where these are in the row, to a variable: chunk after chunk."""
        for value in values:
            total @= total + k.select(inside, value, 0.0)

    def add_squares(self, k: KernelBuilder, total: Value, values: Sequence[Value], inside: Value) -> None:
        """Add the squares of a chunk's values, where these are in the row, to a variable: chunk after chunk."""
        for value in values:
            counted = k.select(inside, value, 0.0)
            total @= k.fma(counted, counted, total)

    def mean(self, total: Value) -> Value:
        """Of the row's values, from their sum."""
        power = self.hidden & (self.hidden - 1) == 0
        return total * (1 / self.hidden) if power else total / float(self.hidden)  # the same bits, without a division's branch

    def inverse_root(self, k: KernelBuilder, total: Value) -> Value:
        """What the row is multiplied by, from its sum of squares."""
        return mathlib.rsqrt(k, self.mean(total) + k.arg.eps)


def scaled(values: Sequence[Value], scale: Value, gammas: Sequence[Value] | None) -> list[Value]:
    """The results: in this order of products; without gammas, times the scale alone."""
    if gammas is None:
        return [value * scale for value in values]
    return [value * scale * gamma for value, gamma in zip(values, gammas, strict=True)]
