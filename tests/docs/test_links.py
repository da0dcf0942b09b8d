"""Links of the pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, anchors, name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), f"{name(page)} links to {target}"
        assert not anchor or anchor in anchors(path), f"{name(page)} links to {target}#{anchor}"
