"""The GPU that settings of kernels are chosen for where none is named. What suits each family of kernels on it, with the
evidence, stands in the suited.py of the family's folder; what is chosen on a known GPU in executor/choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptxgen.target import HOPPER, Target

MULTIPROCESSORS: Final = 132
"""Of a large GPU (H100 and H200 SXM)."""


@dataclass(frozen=True)
class Limits:
    """What settings must fit. target: whose blocks have so much shared memory at most; multiprocessors: to keep busy."""

    target: Target = HOPPER
    multiprocessors: int = MULTIPROCESSORS

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block, at most."""
        return self.target.max_shared


LARGE: Final = Limits()
