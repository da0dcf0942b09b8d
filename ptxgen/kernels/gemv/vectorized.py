"""The vectorized GEMV: one warp a row, as the basic one, but a lane takes the adjacent byte columns that one 32-bit load
brings, and the activations that they meet in loads of 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.formats import find
from ptxgen.kernels.gemv.dot import Dot
from ptxgen.kernels.gemv.walk import Walk
from ptxgen.kernels.gemv.warp_row import WarpRowGemv
from ptxgen.kernels.registry import register_variants
from ptxgen.memory import GlobalArray

if TYPE_CHECKING:
    from ptxgen.builder import KernelBuilder

WIDTH = 4
"""Byte columns of a load."""


@register_variants("format", {"vectorized_q4k_gemv": find("Q4_K")})
@dataclass(frozen=True)
class VectorizedGemv(WarpRowGemv):
    """y = W x, vectorized: one warp a row, 32-bit loads of weights, 128-bit loads of activations.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]."""

    @property
    def name(self) -> str:
        return f"vectorized_{self.format.id}_gemv"

    @property
    def dot(self) -> Dot:
        return Dot(Walk(self.format, self.k, width=WIDTH), pass_values=64)

    def weights(self, k: KernelBuilder) -> GlobalArray:
        return super().weights(k).read_only()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[VectorizedGemv]:
        for k, n in ((4096, 11), (256, 1), (1536, 13), (18944, 3)):
            yield cls(k=k, n=n, **fixed)
