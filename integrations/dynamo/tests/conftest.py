"""A small model, its kernels, and a frontend with two workers on the emulator that the tests of a run share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment

from tests.paths import ROOT
from tests.synthetic import Q, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_model(path, types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, context=512)


@pytest.fixture(scope="session")
def kernels() -> Path:
    """Where the repository's tests keep theirs: many are the same."""
    folder = ROOT / ".pytest_cache" / "d" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def deployment(model: Path, kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(model, kernels, tmp_path_factory.mktemp("dynamo")) as running:
        running.start_workers(2)
        yield running
