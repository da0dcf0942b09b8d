"""The tokens of a GEMV on int8 planes: one, or a batch of a few whose sums a warp holds together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ptxgen.dsl.parts import KernelPart
from ptxgen.formats import RepackedFormat
from ptxgen.kernels.gemv.plane_gemv_type import SAMPLED_WITH_THREE, a_step_and_more
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.shape import require_of

MOST_BATCHED: Final = 8
"""Tokens of a batch: beyond, a matrix is multiplied in tiles of so many."""


@dataclass(frozen=True)
class OneToken(KernelPart):
    """y: f32[n]; digits: s8[1, digits, k]; scales: f32[1, k / 32]; sums: s32[1, k / 32]."""

    prefix: ClassVar[str] = ""

    @property
    def batch(self) -> tuple[int, ...]:
        """The dimension of y before the last, if there is one."""
        return ()

    def check(self, kernel: str) -> None:
        """Raise ShapeError if there cannot be so many; `kernel` is its name."""


@dataclass(frozen=True)
class Batch(OneToken):
    """m tokens, 1 to 8. y: f32[m, n]; digits: s8[m, digits, k]; scales: f32[m, k / 32]; sums: s32[m, k / 32]. Every weight is
    loaded and unpacked once for all of them. Token i has the bits that the kernel for one token gives it."""

    prefix: ClassVar[str] = "batched_"
    summary: ClassVar[str] = "for m tokens"
    defaults: ClassVar[Mapping[str, Any]] = {"rows_per_warp": 1}
    m: int

    @property
    def batch(self) -> tuple[int, ...]:
        return (self.m,)

    def check(self, kernel: str) -> None:
        require_of(kernel, self, "m", high=MOST_BATCHED)

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Sample parameters of kernels with this part."""
        size = max(fixed["format"].block, BLOCK)
        narrow = {"num_warps": 2, "rows_per_warp": 2}
        if not fixed["format"].common:
            yield {"m": 2, "k": a_step_and_more(fixed["format"]), "n": 3, "digits": 3, **narrow}
            return
        if isinstance(fixed["format"], RepackedFormat):
            yield {"m": 3, "k": 11 * size, "n": 3, "digits": 3, **narrow}
            return
        yield {"m": 4, "k": 2048, "n": 9}
        yield {"m": 3, "k": 11 * size, "n": 3, "digits": 1, **narrow}
        if fixed["format"].name == "Q4_K":
            yield {"m": 8, "k": 4096, "n": 2}  # more than fits shared memory at once
            yield {"m": 8, "k": 4352, "n": 2, "digits": 3, "num_warps": 2}  # tokens in two passes, in a loop over chunks
        elif fixed["format"].name in SAMPLED_WITH_THREE:
            yield {"m": 3, "k": 19 * size, "n": 3, "digits": 3, "num_warps": 2}
