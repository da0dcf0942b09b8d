"""README.md and docs/models.md say which architectures there are, as the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.model.architectures import ARCHITECTURES
from tests.docs.architectures import BLOCK, models_of, pages


@pytest.mark.slow
def test_the_committed_pages_are_current(tmp_path: Path) -> None:
    for path, text in pages(tmp_path).items():
        assert len(BLOCK.findall(text)) == 1
        assert path.read_text() == text, "run python -m tests.docs.architectures"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_module_begins_with_its_name_and_its_models(name: str) -> None:
    assert models_of(name)
