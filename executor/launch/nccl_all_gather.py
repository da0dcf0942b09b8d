"""NCCL's all-gather as a launch among the others: what it reads, writes and takes. Its code is NCCL's, which several GPUs
run that are opened as one device (executor/device/nccl.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import whole
from executor.device.several import MOST_RANKS
from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.types import F32


@dataclass(frozen=True)
class NcclAllGather(KernelType):
    """y = the slices x of all ranks one after another, in the memory of each rank.

    x: f32[count], this rank's slice; y: f32[ranks, count]. Bits are moved, none is computed with. A launch on all ranks at once
    is one ncclAllGather in a group (NCCL user guide, "Collective Operations", "Management Of Multiple GPUs From One Thread").
    Like a gather of ours it ends on a rank when the others have come to it, and what they launched before is over; unlike one,
    it may gather into the same y twice in a row. It has no PTX, so nothing but GPUs runs it."""

    family: ClassVar[str] = "collective"
    name = "nccl_all_gather"
    count: int
    ranks: int

    def __post_init__(self) -> None:
        whole("the count of a gather", self.count, 1)
        whole("the ranks of a gather", self.ranks, 2, MOST_RANKS)

    def signature(self) -> Signature:
        return {"y": write(F32, self.ranks, self.count), "x": read(F32, self.count)}

    def launch(self) -> LaunchConfig:
        """How many blocks and threads there are NCCL decides."""
        return LaunchConfig(grid=1, block=1, ranks=self.ranks)

    def emit(self, k: KernelBuilder) -> NoReturn:
        raise ArgumentError(f"{self} has no PTX: its code is NCCL's, which GPUs run that are opened as one device")

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"y": np.stack([arguments["x"]] * self.ranks)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """None: values are copied."""
        return {"y": 0.0}

    def work(self) -> Work:
        """Of a rank: its slice is read once, and the whole is written."""
        return Work(flops=0, bytes=F32.bytes * self.count * (1 + self.ranks))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for count, ranks in ((2048, 2), (7, 2), (1024 * 9, 4)):
            yield cls(count=count, ranks=ranks)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Slices of all ranks."""
        return {
            "y": np.zeros((self.ranks, self.ranks, self.count), np.float32),
            "x": rng.standard_normal((self.ranks, self.count), np.float32),
        }
