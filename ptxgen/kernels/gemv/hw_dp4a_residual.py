"""hw_dp4a with the residual connection as its epilogue: what a projection adds to the stream goes there at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.dsl.kernel_type import Signature, Work, update
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.digit_gemv_type import PACKED
from ptxgen.kernels.gemv.gemv_type import UNIT_ROUNDOFF
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.registry import register_variants
from ptxgen.types import F32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ptxgen.dsl.builder import KernelBuilder


@register_variants("format", {f"hw_dp4a_{id}_gemv_residual": format for id, format in PACKED.items()})
@dataclass(frozen=True)
class HwDp4aGemvResidual(HwDp4aGemv):
    """y += W x on quantised activations: hw_dp4a and residual_add in one, with the very bits of the two.

    y: f32[n], in place; w, digits, scales and sums as in hw_dp4a."""

    @property
    def name(self) -> str:
        return f"hw_dp4a_{self.format.id}_gemv_residual"

    def signature(self) -> Signature:
        return {**super().signature(), "y": update(F32, self.n)}

    def _before(self, k: KernelBuilder, row: Value) -> Value | None:
        if self.n % self.block_rows:
            return None  # a warp without a row of its own is given the last one, which another warp may be writing
        value: Value = k.load(k.arg.y[row])
        return value

    def _store_row(self, k: KernelBuilder, row: Value, sums: list[Value], before: Value | None) -> None:
        y = k.load(k.arg.y[row]) if before is None else before
        k.store(k.arg.y[row], y + sums[0])

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        return {"y": arguments["y"].astype("f8") + super().reference(**arguments)["y"]}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        """That of hw_dp4a, and the rounding of one more addition."""
        import numpy as np

        product = super().tolerance(**arguments)["y"]
        return {"y": product + UNIT_ROUNDOFF * (np.abs(self.reference(**arguments)["y"]) + product)}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        import numpy as np

        return super().inputs(rng) | {"y": rng.standard_normal(self.n).astype(np.float32)}

    def work(self) -> Work:
        product = super().work()
        return Work(flops=product.flops + self.n, bytes=product.bytes + 4 * self.n)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HwDp4aGemvResidual]:
        yield cls(k=512, n=5, digits=3, **cls._narrow(), **fixed)  # the sum is tested in hw_dp4a
        if fixed["format"].name == "Q4_K":
            yield cls(k=512, n=4, digits=3, **cls._narrow(), **fixed)  # every warp has rows, so y is loaded early
