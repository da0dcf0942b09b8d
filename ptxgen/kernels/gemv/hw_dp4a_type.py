"""What the strategies of hw_dp4a have in common: their settings and what follows from them. How they go along a row stands in
chunks.py, what they write in hw_dp4a.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import EARLY_SM, LaunchConfig
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

    bit_free = ("num_warps", "rows_per_warp", "ahead", "resident_threads", "pdl")  # one warp has a row to itself
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
    def block_rows(self) -> int:
        """Rows of a block of threads."""
        return self.num_warps * self.rows_per_warp

    def launch(self) -> LaunchConfig:
        threads = self.num_warps * WARP_SIZE
        resident = max(1, self.resident_threads // threads)
        return LaunchConfig(grid=-(-self.n // self.block_rows), block=threads, resident=resident, early=self.pdl)

    @classmethod
    def _narrow(cls) -> dict[str, Any]:
        return {"num_warps": 2, "rows_per_warp": 1, "ahead": 3, "resident_threads": 256}
