"""Several matrices with the same activation halves in one launch: which of them may be joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.gemm.half_gemm_type import HalfGemmType
from ptxgen.kernels.joined import Joined, further

MULTIPROCESSORS: Final = 132
"""Of an H200: what a launch fills."""


@dataclass(frozen=True)
class JoinedGemmType(Joined, HalfGemmType):
    """Y = X W^T on activation halves for one, two or three matrices."""

    def beside(self, others: Sequence[KernelType]) -> Self | None:
        """This kernel for the matrices of one or two others, too, with its own settings. None where the others are not of its
        type, for the same format and activations, or where one has several matrices or is added onto something."""
        if self.n2 or self.onto:
            return None
        more = further(
            others,
            lambda one: (
                isinstance(one, type(self))
                and (one.format, one.k, one.m, one.parts) == (self.format, self.k, self.m, self.parts)
                and not (one.n2 or one.onto)
            ),
        )
        return None if more is None else replace(self, n2=more[0], n3=more[1])
