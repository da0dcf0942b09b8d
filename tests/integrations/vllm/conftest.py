"""The plugin's wheel, and a process that it was not yet imported in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptxgen_vllm import installation
from tests.integrations.vllm import plugin


@pytest.fixture(scope="session")
def wheel(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return plugin.wheel(pytestconfig.cache.mkdir(f"{plugin.PACKAGE}-{installation.VERSION}"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is imported from. Afterwards nothing of the plugin is imported, and nothing of ours is in it."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    installation._theirs.clear()
    installation._ours.clear()
    for name in [name for name in sys.modules if name.split(".")[0] == plugin.PACKAGE]:
        del sys.modules[name]
