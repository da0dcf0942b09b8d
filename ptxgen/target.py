"""GPU targets: which PTX version a GPU needs, and what all GPUs have in common. A row says what its instruction needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ptxgen.errors import ArgumentError

WARP_SIZE: Final = 32
WARPGROUP_SIZE: Final = 4 * WARP_SIZE
"""Threads of four warps in a row, the first of which is the 4 n-th of its block."""
FULL_WARP: Final = 0xFFFFFFFF
"""The mask of all lanes of a warp."""

# Limits of every GPU that is supported (CUDA C++ Programming Guide, "Compute Capabilities", technical specifications).
MAX_GRID: Final = (2**31 - 1, 65535, 65535)  # blocks
MAX_BLOCK: Final = (1024, 1024, 64)  # threads by dimension
MAX_THREADS: Final = 1024  # of a block
MAX_STATIC_SHARED: Final = 48 * 1024  # bytes of shared memory of a block; beyond it a launch asks for them (dynamic_shared)
MAX_REGISTERS: Final = 255  # of a thread
REGISTERS: Final = 65536  # of a multiprocessor

# The first PTX version that knows each GPU (PTX ISA, "Release notes", table of PTX versions).
FIRST_PTX = {
    75: (6, 3), 80: (7, 0), 86: (7, 1), 87: (7, 4), 89: (7, 8), 90: (7, 8), 100: (8, 6), 103: (8, 8), 110: (9, 0), 120: (8, 7),
    121: (8, 8),
}  # fmt: skip

# The most shared memory of a block, in KiB, static and dynamic (the same table, by generation).
_MAX_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}

DEPENDENT_SM: Final = 90
"""The oldest GPU on which a kernel can start before its predecessor has ended: programmatic dependent launch."""
PIPELINE_SHARED: Final = 224 * 1024
"""Bytes of shared memory that a kernel `with_weight_ring` may ask for: nearly all that a block may have on sm_90 and sm_100."""

# What every driver that CUDA 13 runs on accepts (580 and later).
NEWEST_PTX = (9, 0)


@dataclass(frozen=True)
class Target:
    """A GPU generation. `sm` is 90 for sm_90; `feature` is "a" for sm_90a, whose code runs on that GPU only."""

    sm: int
    feature: str = ""

    @property
    def name(self) -> str:
        """As PTX and nvcc write it: sm_90a."""
        return f"sm_{self.sm}{self.feature}"

    @property
    def first_ptx(self) -> tuple[int, int]:
        """The first PTX version that knows it."""
        return max(FIRST_PTX[self.sm], (8, 0)) if self.feature else FIRST_PTX[self.sm]

    @property
    def max_shared(self) -> int:
        """Bytes of shared memory of a block, at most, with what a launch asks for."""
        return _MAX_SHARED[self.sm] * 1024

    def has(self, sm: int, feature: str = "") -> bool:
        """Whether it has what came with sm_`sm`; with a feature, what sm_`sm``feature` alone has."""
        return (self.sm, self.feature) == (sm, feature) if feature else self.sm >= sm

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, name: str) -> Target:
        """`sm_90`, `sm_90a`. Raises ArgumentError that lists the known ones."""
        match = re.fullmatch(r"sm_(\d+)(a?)", name)
        if not match or int(match[1]) not in FIRST_PTX or (match[2] and int(match[1]) < 90):
            raise ArgumentError(
                f"unknown target {name!r}; known: {', '.join(f'sm_{sm}' for sm in FIRST_PTX)}, with an `a` from sm_90"
            )
        return cls(int(match[1]), match[2])


HOPPER = Target(90, "a")
"""Hopper GPUs with what they alone have: products of warpgroups."""

ALL = tuple(Target(sm) for sm in (75, 80, 86, 89, 90, 100, 120))
"""The targets that every kernel is assembled for in tests."""

DEFAULT = Target(75)
"""What is emitted when nobody names a target: runs on every supported GPU."""
