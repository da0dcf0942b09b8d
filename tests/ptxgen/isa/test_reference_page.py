"""The reference page docs/instructions.md is what the table says."""

from __future__ import annotations

from ptxgen.isa import instructions, special
from tests.paths import ROOT
from tests.ptxgen.isa import reference

PAGE = ROOT / "docs" / "instructions.md"


def test_committed_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), "run python -m tests.ptxgen.isa.reference docs/instructions.md"


def test_every_row_is_on_the_page_by_its_name_and_its_summary() -> None:
    lines = [line for line in reference.page().replace("\\|", "|").splitlines() if line.startswith("|[`")]
    for row in instructions.ROWS:
        does = " ".join(row.summary.split())
        operation, _, rest = does.partition(", by ")
        mine = [line for line in lines if f"[`{row.name}`]" in line]
        assert any(does in line or (f"`{row.mnemonic}`: {operation}" in line and rest in line) for line in mine), row


def test_every_special_register_is_on_the_page_once() -> None:
    page = reference.page()
    assert [page.count(f"`{register.name}`") for register in special.ALL] == [1] * len(special.ALL)


def test_every_row_has_a_summary_that_is_a_sentence() -> None:
    for row in instructions.ROWS:
        assert row.summary.endswith("."), row.name
