"""Where the repository and its golden files lie. No test."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "golden"
