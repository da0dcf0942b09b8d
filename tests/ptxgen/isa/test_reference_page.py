"""The reference page docs/instructions.md is what the table says."""

from __future__ import annotations

from ptxgen.isa import instructions, special
from tests.paths import ROOT
from tests.ptxgen.isa import reference

PAGE = ROOT / "docs" / "instructions.md"


def test_committed_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), "run python -m tests.ptxgen.isa.reference docs/instructions.md"


def test_every_row_is_on_the_page_once() -> None:
    lines = [line for line in reference.page().splitlines() if line.startswith("| `")]
    assert len(lines) == len(instructions.ROWS) + len(special.ALL)


def test_every_row_has_a_summary_that_is_a_sentence() -> None:
    for row in instructions.ROWS:
        assert row.summary.endswith("."), row.name
