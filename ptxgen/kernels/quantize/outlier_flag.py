"""Whether activations have a massive outlier, beside which 8 bits leave nothing of the others: the predicate in NumPy, and the
kernel that gives the same answer on the device. What to do about an outlier is the executor's business."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.accuracy import OUTLIER
from ptxgen.kernels.quantize.quantize import magnitude
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U32

THREADS = 1024
LONGEST = 65536  # values: the text has a line or two for each 256 of them
INFINITY = 0x7F800000  # as bits; the NaNs come after it


def has_outlier(x: NDArray[np.float32], ratio: float) -> bool:
    """Whether max |x| > ratio * rms(x), or x has an infinity or a NaN. x: f32[n], any n; ratio: the value of an f32, 0 or more.

    Decided as max^2 * n > ratio^2 * (sum of the squares), in float64. The squares are exact, and each product of the comparison
    is rounded once. The sum is rounded in this order: THREADS running sums take every THREADS-th value, then the sums of a warp
    are added in halves (those 16 lanes apart, then 8, 4, 2, 1), then those of the warps in the same way. So the answer is the
    exact one unless the two sides agree to (n / 1024 + 12) * 2^-53, and also where they are equal and the sum is exact: then
    there is no outlier. Nothing and zeros have none."""
    if not np.isfinite(x).all():
        return True
    wide = np.zeros(-(-x.size // THREADS) * THREADS)
    wide[: x.size] = x
    sums = np.zeros(THREADS)
    for part in wide.reshape(-1, THREADS):
        sums = sums + part * part
    warps = _added_in_f16(sums.reshape(THREADS // WARP_SIZE, WARP_SIZE).T)
    total, peak = float(_added_in_f16(warps)), float(np.abs(wide).max(initial=0.0))
    return peak * peak * x.size > ratio * ratio * total


def _added_in_f16(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum over the first axis, a power of two long."""
    while len(values) > 1:
        half = len(values) // 2
        values = values[:half] + values[half:]
    added: NDArray[np.float64] = values[0]
    return added


@register
@dataclass(frozen=True)
class OutlierFlag(KernelType):
    """flag |= 1 if max |x| > ratio * rms(x), or if x has an infinity or a NaN; otherwise flag is left alone.

    flag: u32[1]; x: f32[n], n at most 65536; ratio: f32 scalar, 0 or more. Exactly `has_outlier`, in float64. One block:
    launches that share a flag must run one after another.
    """

    family: ClassVar[str] = "quantize"
    name = "outlier_flag"
    n: int

    def __post_init__(self) -> None:
        require(self, "n", high=LONGEST)

    def signature(self) -> Signature:
        return {"flag": update(U32, 1, align=4), "x": read(F32, self.n, align=4), "ratio": Scalar(F32, low=0.0)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1, block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        x = k.arg.x.at(k.tid.x)
        peak, total = k.u32(0), k.f64(0.0)  # the peak as bits, because NaN is then the largest
        for start in range(0, self.n, THREADS):
            if start + THREADS <= self.n:
                value = k.load(x[start])
            else:
                value = k.f32(0.0)
                with k.when(k.tid.x < self.n - start):
                    k.assign(value, k.load(x[start]))
            wide = k.f64(value)
            k.assign(peak, k.max(peak, magnitude(k, value)))
            k.assign(total, k.fma(wide, wide, total))
        peak, total = k.block_max(peak), k.block_sum(total)
        largest, ratio = k.f64(k.bits(peak, F32)), k.f64(k.arg.ratio)
        beyond = largest * largest * float(self.n) > ratio * ratio * total
        with k.when((k.tid.x == 0) & (beyond | (peak >= INFINITY))):
            k.store(k.arg.flag[0], k.load(k.arg.flag[0]) | 1)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"flag": arguments["flag"] | np.uint32(has_outlier(arguments["x"], float(arguments["ratio"])))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"flag": 0.0}

    def work(self) -> Work:
        """A maximum, a product and a sum a value; a flag that stays as it is moves no byte."""
        return Work(flops=3 * self.n, bytes=F32.bytes * self.n)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for n in (896, 1, 255, 1025, 1536, 4096, 14336):
            yield cls(n=n)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """A flag with another bit set, and activations of which one is an outlier for about half of the ratios."""
        x = rng.normal(0.0, 1.0, self.n).astype(np.float32)
        x[rng.integers(self.n)] = OUTLIER
        return {"flag": np.array([4], np.uint32), "x": x, "ratio": np.float32(rng.uniform(4.0, 40.0))}
