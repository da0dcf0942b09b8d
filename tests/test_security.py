"""SECURITY.md claims nothing that no test tries."""

from __future__ import annotations

import ast
import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
CLAIMS = [" ".join(claim.split()) for claim in re.findall(r"^\* (.*?)(?=\n\n|\n\* |\n#|\Z)", PAGE, re.MULTILINE | re.DOTALL)]
SECTIONS = {heading.strip(): body for heading, body in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE)}


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_is_named_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_claim_names_a_test(claim: str) -> None:
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", claim)


def test_every_thing_in_the_table_has_a_section_with_claims() -> None:
    rows = re.findall(r"^\| \[(.*?)\]\(#([\w-]+)\)", PAGE, re.MULTILINE)
    assert len(rows) >= 6
    anchors = {heading.lower().replace(" ", "-"): body for heading, body in SECTIONS.items()}
    for thing, anchor in rows:
        assert "\n* " in anchors[anchor], thing
