"""The GPU that settings of kernels are chosen for where none is named. What suits each family of kernels on it, with the
evidence, stands in the suited.py of the family's folder; what is chosen on a known GPU in executor/choice."""

from __future__ import annotations

from typing import Final

MULTIPROCESSORS: Final = 132
"""Of a large GPU (H100 and H200 SXM)."""
