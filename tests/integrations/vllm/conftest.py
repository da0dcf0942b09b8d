"""The plugin's wheel, and a process that it was not yet imported in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ptxgen_vllm import installation
from tests.integrations.vllm import plugin


@pytest.fixture(scope="session")
def wheel(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return plugin.wheel(pytestconfig.cache.mkdir(f"{plugin.PACKAGE}-{installation.VERSION}"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is imported from, with nothing of the plugin imported yet. Afterwards what was imported before is there
    again, and nothing of ours is in it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = _forgotten()
    yield tmp_path
    installation._theirs.clear()
    installation._ours.clear()
    _forgotten()
    sys.modules.update(before)


def _forgotten() -> dict[str, ModuleType]:
    """What is imported of the plugin, and is not any more."""
    names = [name for name in sys.modules if name.split(".")[0] == plugin.PACKAGE]
    return {name: sys.modules.pop(name) for name in names}
