"""The executor that tests of its parts start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor import CudaExecutor, GpuProfile
from tests.executor.api.five_ways import FiveWays
from tests.executor.api.layer_model import EPS, FF, HIDDEN, LAYERS, opened, written


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_kernels: None) -> None:
    """No test here looks at what is compiled."""


@pytest.fixture
def executor() -> Iterator[CudaExecutor]:
    with CudaExecutor("emulator") as opened:
        yield opened


@pytest.fixture(scope="module")
def llama_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def llama(llama_path: Path, kernels: Path) -> Iterator[CudaExecutor]:
    with opened(llama_path, "llama", kernels) as made:
        yield made


@pytest.fixture
def layered(llama: CudaExecutor) -> Iterator[CudaExecutor]:
    """One for all tests of a file, with the weights of layers, and a sequence that is at its start."""
    llama.sequence.reset()
    yield llama
    llama.profile = GpuProfile()
    llama.launcher.observers.clear()


@pytest.fixture
def ways(layered: CudaExecutor) -> FiveWays:
    return FiveWays(layered, LAYERS, HIDDEN, FF, EPS["llama"])
