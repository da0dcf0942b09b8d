"""Models run many kernels, and no test here looks at what is compiled: all share one cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(kernels))
    return kernels
