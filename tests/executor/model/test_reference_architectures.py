"""The reference against llama.cpp: whole models with every feature of their architectures on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.reference.architectures import ARCHITECTURES
from tests.reference.cases import CASES, DEEP, KEPT, RECORDED, TOKENS, write_case
from tests.reference_model import ReferenceModel
from tests.synthetic_layouts import LAYOUTS

WANTED: Final[dict[str, list[float]]] = json.loads(RECORDED.read_text())


def slow_if_deep(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow) if CASES[name].items() >= DEEP.items() else name


@pytest.mark.parametrize("name", [slow_if_deep(name) for name in CASES])
def test_the_reference_has_the_logits_that_llama_cpp_has(name: str, tmp_path: Path) -> None:
    *first, deviation = WANTED[name]
    logits = ReferenceModel(write_case(name, tmp_path)).logits(TOKENS)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[-1, :KEPT], first, rtol=0, atol=2e-5 * deviation)
    assert logits[-1].std() == pytest.approx(deviation, rel=1e-4)


def test_every_architecture_can_be_written() -> None:
    assert LAYOUTS.keys() == ARCHITECTURES.keys()


def test_the_context_of_a_session_chooses_the_factors_of_longrope(tmp_path: Path) -> None:
    path = write_case("phi3", tmp_path)
    long, short = ReferenceModel(path, context=33), ReferenceModel(path, context=32)
    assert np.abs(long.logits(TOKENS) - short.logits(TOKENS)).max() > 0.1
