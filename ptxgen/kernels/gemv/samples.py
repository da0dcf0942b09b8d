"""Settings of sample shapes of GEMVs on int8 planes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NARROW: Final[Mapping[str, Any]] = {"num_warps": 2, "rows_per_warp": 1, "ahead": 3, "resident_threads": 256}
"""Small blocks of threads."""
