"""docs/tokenizers.md is what the tables say."""

from __future__ import annotations

from tests.executor.text import tokenizers_page
from tests.paths import ROOT


def test_the_page_is_what_the_tables_say() -> None:
    committed = (ROOT / "docs" / "tokenizers.md").read_text(encoding="utf-8")
    assert committed == tokenizers_page.page(), "run python -m tests.executor.text.tokenizers_page docs/tokenizers.md"
