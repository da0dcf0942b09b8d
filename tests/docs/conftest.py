"""The environment in which pages are run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def environment(kernels: Path) -> dict[str, str]:
    """What a shell has after `. .venv/bin/activate`, and no colours."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PTXGEN_", "GPU_DEBUG", "PYTEST"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"
    return {
        **own,
        "PATH": path,
        "PTXGEN_CACHE_DIR": str(kernels),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
