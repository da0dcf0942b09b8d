"""Fixtures and options that every test may use."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.paths import GOLDEN

# How long an example takes is the machine's business: under load any of them is slow. All else stays as Hypothesis has it.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew instead of comparing with them")
    parser.addoption("--record-isa", metavar="DIR", help="keep what the GPU gives for every instruction in DIR")
    parser.addoption("--record-models", metavar="DIR", help="with -m gpu: write hashes of model logits to this folder")
    parser.addoption("--fuzz-seconds", type=float, default=8.0, metavar="S", help="how long each fuzzer begins cases")
    parser.addoption("--fuzz-seed", type=int, default=8, metavar="N", help="what the fuzzers' cases are chosen by")
    parser.addoption("--fuzz-case", type=int, metavar="N", help="run this one case of a fuzzer, as its failure says")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("ptx/name.ptx", text)` fails with a diff unless the golden file holds this text."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="ascii")
            return
        if not path.exists():
            pytest.fail(f"golden/{name} does not exist; write it with --update-golden and read it", pytrace=False)
        recorded = path.read_text(encoding="ascii")
        if recorded != text:
            diff = difflib.unified_diff(recorded.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="")
            pytest.fail("\n".join([*diff, "if this is meant, run with --update-golden"]), pytrace=False)

    return check
