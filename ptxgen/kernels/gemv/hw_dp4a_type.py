"""What the strategies of hw_dp4a have in common: their settings and what follows from them. How they go along a row stands in
chunks.py, what they write in hw_dp4a.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import EARLY_SM, LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.kernels.gemv.digit_gemv_type import DigitGemvType
from ptxgen.kernels.joined import MatrixOfBlock
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE


@dataclass(frozen=True)
class HwDp4aType(DigitGemvType):
    """A warp takes rows_per_warp rows, a block num_warps warps. The loads of the first `ahead` steps of weights are issued
    before the activations are touched; with `pdl` before the wait for the kernel that writes them (programmatic dependent
    launch, sm_90 and later), which takes more registers: between other kernels it is slower. A multiprocessor's registers hold
    resident_threads threads."""

    weights: ClassVar[tuple[str, ...]] = ("w",)
    """The matrices that a warp has rows of: those of the same numbers of each."""
    # One warp has a row to itself.
    bit_free: ClassVar[tuple[str, ...]] = ("num_warps", "rows_per_warp", "ahead", "resident_threads", "pdl")
    num_warps: int = field(default=8, kw_only=True)
    rows_per_warp: int = field(default=2, kw_only=True)
    ahead: int = field(default=2, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "num_warps", high=32)
        require(self, "rows_per_warp", high=8)
        require(self, "ahead", high=8)
        require(self, "resident_threads", high=2048)

    @property
    def least_sm(self) -> int:
        return EARLY_SM if self.pdl else 75

    def matrix_of_block(self, k: KernelBuilder) -> MatrixOfBlock | None:
        """Which of several matrices a block has rows of; None where there is one."""
        return None

    @property
    def chain(self) -> int:
        return self.fragments.steps * self.runs + (WARP_SIZE.bit_length() - 1)

    @property
    def results_at_once(self) -> int:
        """Results whose rows of weights a warp has at once, which share each read of the activations."""
        return self.rows_per_warp // len(self.weights)

    @property
    def warp_results(self) -> int:
        """Results of a warp in all."""
        return self.results_at_once

    @property
    def block_rows(self) -> int:
        """Results of a block of threads."""
        return self.num_warps * self.warp_results

    @property
    def whole(self) -> bool:
        """Whether every warp has `warp_results` rows from `first_row` on."""
        return self.n % self.block_rows == 0

    def first_row(self, k: KernelBuilder) -> Value:
        """The number of the warp's first result."""
        first: Value = (k.ctaid.x * self.num_warps + k.warp) * self.warp_results
        return first

    def launch(self) -> LaunchConfig:
        threads = self.num_warps * WARP_SIZE
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(grid=-(-self.n // self.block_rows), block=threads, resident=resident, early=self.pdl)

    @classmethod
    def _narrow(cls) -> dict[str, Any]:
        return {"num_warps": 2, "rows_per_warp": 1, "ahead": 3, "resident_threads": 256}
