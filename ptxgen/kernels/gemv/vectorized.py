"""The vectorized GEMV: one warp a row, as the basic one, but a lane takes the adjacent byte columns that one 32-bit load
brings, and the activations that they meet in loads of 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptxgen.errors import ArgumentError
from ptxgen.formats import COMMON
from ptxgen.kernels.gemv.dot import Dot
from ptxgen.kernels.gemv.gemv_type import model_cases
from ptxgen.kernels.gemv.iteration import IterationSpace
from ptxgen.kernels.gemv.warp_row import WarpRowGemv
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require

WIDTH = 4
"""Byte columns of a load."""


@register(format=[format for format in COMMON.values() if WIDTH in format.widths])
@dataclass(frozen=True)
class VectorizedGemv(WarpRowGemv):
    """y = W x, vectorized: one warp a row, 32-bit loads of weights, 128-bit loads of activations.

    y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]; k is a multiple of 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if WIDTH not in self.format.widths:
            widths = ", ".join(map(str, self.format.widths))
            raise ArgumentError(
                f"{self.name}: lanes take {WIDTH} columns at once; those of {self.format} can be taken by {widths}"
            )
        require(self, "k", multiple=max(WIDTH, self.format.block))

    name_pattern = "vectorized_{format}_gemv"
    read_only = True

    @property
    def dot(self) -> Dot:
        return Dot(IterationSpace(self.format, self.k, width=WIDTH), pass_values=64)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[VectorizedGemv]:
        return model_cases(cls, fixed, (4096, 11), (256, 1), (1536, 13), (18944, 3))
