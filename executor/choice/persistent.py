"""Chooses whether a token's layers run by kernels whose blocks stay between operations, and how large these are. Measures
nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from executor.base.rules import RULES
from executor.choice.choice import GpuProfile
from ptxgen.errors import ArgumentError, NoRoom
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from ptxgen.target import Target

RULE: Final = RULES["persistent_layers"]
FITTING: Final = ((16, 4, 4), *((warps, rows, rows + 1) for warps in (16, 8) for rows in (4, 3, 2)), (8, 2, 3))
"""num_warps, rows_per_warp and pipeline_stages of the kernel, the fastest first (evidence: thresholds.py)."""
EMULATED_BLOCKS = 4
"""Blocks on the emulator, which has no multiprocessors: enough to wait for each other."""


@dataclass(frozen=True)
class PersistentGrid:
    """Blocks of such a kernel, one for each multiprocessor, and the target that these are of."""

    blocks: int
    target: Target

    @classmethod
    def of(cls, target: Target, multiprocessors: int) -> Self:
        """Of a device with so many multiprocessors, 0 on the emulator."""
        return cls(multiprocessors or EMULATED_BLOCKS, target)

    def __str__(self) -> str:
        return f"{PersistentLayer.name} with {self.blocks} blocks"

    def fitted(self, make: Callable[..., PersistentLayer]) -> PersistentLayer:
        """The kernel with the first of FITTING that the target has shared memory for. make: gives it with these settings.
        ArgumentError if there is none, and what `make` raises but for want of room."""
        for warps, rows, pipeline_stages in FITTING:
            with suppress(NoRoom):
                fitted = make(blocks=self.blocks, num_warps=warps, rows_per_warp=rows, pipeline_stages=pipeline_stages)
                if fitted.runs_on(self.target):
                    return fitted
        raise ArgumentError(
            f"{PersistentLayer.name} needs more shared memory than the {self.target.max_shared} bytes of a block on "
            f"{self.target} for this model; leave the profile's {RULE.name} off{RULE.variable.note()}"
        )


def choose_persistent(profile: GpuProfile, target: Target, multiprocessors: int) -> PersistentGrid | None:
    """For a device with so many multiprocessors, 0 on the emulator. None if the profile does not want it. ArgumentError on a
    GPU that is too old."""
    if not profile.allows(RULE.name):
        return None
    RULE.require_on(target)
    return PersistentGrid.of(target, multiprocessors)
