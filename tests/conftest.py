"""Options that every test may use."""

from __future__ import annotations

import pytest
from hypothesis import settings

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
