"""SwiGLU whose result is quantised in the same launch, for a down projection on int8 digits. One thread a value: the divisions
of a thread follow one another, and there are more than enough threads for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.activation.elementwise import BatchedFusedSwiglu, FusedSwiglu
from ptxgen.kernels.quantize import activation_digits
from ptxgen.kernels.quantize.digit_bounds import digit_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32

THREADS = 128


@register
@dataclass(frozen=True)
class FusedSwigluDigits(KernelType):
    """y = gate * sigmoid(gate) * up, and the int8 digits of y: fused_swiglu and a quantize kernel in one launch, bit for bit.

    y, gate, up: f32[n], n a multiple of 32. digits: s8[1, digits, n], scales: f32[1, n / 32], sums: s32[1, n / 32]: what
    q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of y.
    """

    family: ClassVar[str] = "activation"
    name = "fused_swiglu_digits"
    n: int
    digits: int

    def __post_init__(self) -> None:
        require(self, "n", multiple=activation_digits.BLOCK)
        require(self, "digits", high=max(activation_digits.LARGEST))

    @property
    def rows(self) -> int:
        """Rows of values, each quantised by itself."""
        return 1

    @property
    def swiglu(self) -> FusedSwiglu:
        """The kernel that makes y alone."""
        return FusedSwiglu(n=self.n)

    def batched(self, m: int) -> tuple[KernelType, ...]:
        return (BatchedFusedSwigluDigits(self.n, self.digits, m=m),) if type(self) is FusedSwigluDigits else ()

    def signature(self) -> Signature:
        shape = self.swiglu.shape
        quantised = activation_digits.arrays(self.rows, self.digits, self.n, "out")
        return {"y": write(F32, *shape), **quantised, "gate": read(F32, *shape), "up": read(F32, *shape)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        live = i < self.n
        # Threads past the end compute the last value again, because shuffles need whole warps.
        place = k.min(i, self.n - 1)
        row, index = self._index(k, place)
        y = self.swiglu.compute(k, k.load(k.arg.gate[index]), k.load(k.arg.up[index]))
        with k.when(live):
            k.store(k.arg.y[index], y)
        write_digits(k, self.digits, row, place, [y], live)

    def _index(self, k: KernelBuilder, place: Value) -> tuple[Value | int, Value | tuple[Value, Value]]:
        """The row of a block, and the index of its value `place` in y, gate and up."""
        return 0, place

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        y = self.swiglu.reference(**arguments)["y"]
        return {"y": y, **activation_digits.quantize(y.reshape(self.rows, self.n), self.digits)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """That of fused_swiglu, and what it lets the digits be."""
        shape, y = (self.rows, self.n), self.swiglu.reference(**arguments)["y"]
        bound = np.asarray(self.swiglu.tolerance(**arguments)["y"])
        return {"y": bound, **digit_bounds(y.reshape(shape), bound.reshape(shape), self.digits)}

    def work(self) -> Work:
        swiglu, quantize = self.swiglu.work(), Quantize(self.digits, self.n, self.rows).work()
        reread = F32.bytes * self.swiglu.size
        return Work(flops=swiglu.flops + quantize.flops, bytes=swiglu.bytes + quantize.bytes - reread)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, digits in ((1536, 2), (4096, 1), (576, 3), (32, 2)):
            yield cls(n=n, digits=digits)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**self.swiglu.inputs(rng), **activation_digits.unwritten(self.rows, self.digits, self.n)}


@register
@dataclass(frozen=True)
class BatchedFusedSwigluDigits(FusedSwigluDigits):
    """y = gate * sigmoid(gate) * up and the int8 digits of y for each of m rows: fused_swiglu_digits, with the same bits
    in every row.

    y, gate, up: f32[m, n], n a multiple of 32. digits: s8[m, digits, n]; scales: f32[m, n / 32]; sums: s32[m, n / 32].
    """

    name = "batched_fused_swiglu_digits"
    m: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", high=MOST_ROWS)

    @property
    def rows(self) -> int:
        return self.m

    @property
    def swiglu(self) -> FusedSwiglu:
        return BatchedFusedSwiglu(n=self.n, m=self.m)

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(super().launch().grid[0], self.m), block=THREADS)

    def _index(self, k: KernelBuilder, place: Value) -> tuple[Value | int, Value | tuple[Value, Value]]:
        return k.ctaid.y, (k.ctaid.y, place)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n, digits, m in ((576, 2, 3), (160, 3, 7)):
            yield cls(n=n, digits=digits, m=m)
