"""The basic GEMV: one warp a row, one byte column a lane, plain loads. Works for every format and GPU; the strategies beside it
are measured against it."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.dot import Dot
from ptxgen.kernels.gemv.iteration import IterationSpace
from ptxgen.kernels.gemv.warp_row import WarpRowGemv
from ptxgen.kernels.registry import register


@register(format=FORMATS.values())
@dataclass(frozen=True)
class Gemv(WarpRowGemv):
    """y = W x, basic: one warp a row.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]. Weights are decoded to the very f32 values of
    gguf-py's dequantize, and products added by fma in a fixed order."""

    name_pattern = "{format}_gemv"

    @property
    def dot(self) -> Dot:
        return Dot(IterationSpace(self.format, self.k))
