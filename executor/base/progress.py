"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and how much there is (bytes or pieces)."""
