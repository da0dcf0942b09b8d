"""By what several devices gather what each has computed: kernels of ours, which store into each other's memory, or NCCL. Which
of them is chosen in gather_choice.py; how NCCL gathers is in nccl.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from executor.base.arguments import whole


@dataclass(frozen=True)
class Gathers:
    """nccl_from: NCCL gathers what has so many bytes in all, or more; None: nothing; 0: everything, and no kernel of one device
    uses the memory of another. reason: why. ArgumentError unless it is a whole number."""

    nccl_from: int | None = None
    reason: str = "all reach each other"

    def __post_init__(self) -> None:
        if self.nccl_from is not None:
            whole("the bytes from which NCCL gathers", self.nccl_from, 0)

    @property
    def nccl(self) -> bool:
        """Whether NCCL gathers anything."""
        return self.nccl_from is not None

    @property
    def peers(self) -> bool:
        """Whether kernels of ours gather anything: then all reach each other."""
        return self.nccl_from != 0

    def by_nccl(self, nbytes: int) -> bool:
        """Whether NCCL gathers so many bytes, those of all ranks together."""
        return self.nccl_from is not None and nbytes >= self.nccl_from

    def __str__(self) -> str:
        if self.nccl_from is None:
            return f"kernels of ours ({self.reason})"
        below = f" from {self.nccl_from} bytes on, kernels of ours below" if self.nccl_from else ""
        return f"NCCL{below} ({self.reason})"


PEERS: Final = Gathers()


class NcclGather(NamedTuple):
    """One gather of NCCL's: where each rank has its slice of `nbytes`, and where the whole goes on each."""

    slices: tuple[int, ...]
    wholes: tuple[int, ...]
    nbytes: int
