"""An emulator for all tests of a file. Models run many kernels, and no test here looks at what is compiled: all share one cache
folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executor.choice.choice import GpuProfile
from executor.device import Device, open_device
from executor.model.decoder import Decoder
from executor.model.generation import LanguageModel
from tests.executor.model.recording import Compare, Recording
from tests.synthetic import Q, write_model


@pytest.fixture(autouse=True)
def own_cache(kernels: Path, quick_kernels: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(kernels))
    return kernels


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("emulator") as opened:
        yield opened


@pytest.fixture(scope="module")
def recorded_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of `recorded`."""
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", types=Q.Q8_0, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=128)


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    """A device that remembers the order of things."""
    with Recording() as opened:
        yield opened


@pytest.fixture(scope="module")
def recorded(recorded_path: Path, recording: Recording) -> Iterator[LanguageModel]:
    """A model on it, with room for 32 tokens."""
    with LanguageModel.load(recorded_path, recording, context=32, profile=GpuProfile()) as loaded:
        yield loaded


@pytest.fixture
def same(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """What it gives is what it gives without steps ahead, and where the host chooses."""

    def compare(something: Callable[[], object]) -> None:
        found = []
        for patches in ({}, {"run_ahead": lambda self: None}, {"can_draw": property(lambda self: False)}):
            with monkeypatch.context() as patch:
                for name, value in patches.items():
                    patch.setattr(Decoder, name, value)
                model.forget()
                found.append(something())
        assert found[0] == found[1]
        assert found[0] == found[2]

    return compare
