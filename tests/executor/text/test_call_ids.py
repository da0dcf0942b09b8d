"""Ids of calls in the forms that templates take."""

from __future__ import annotations

import re

import pytest

from executor.text.call_ids import IdForm, fitted_id, new_id

IDS = ["", "c1", "call_9119", "abcDEF123", "chatcmpl-tool-" + "0" * 32, "\u00e9" * 9, "\ud800"]


@pytest.mark.parametrize("id", IDS, ids=ascii)
def test_ids_of_nine_letters_and_digits_are_made_of_others(id: str) -> None:
    nine = fitted_id(id, "nine", "f", 0)
    assert re.fullmatch("[a-zA-Z0-9]{9}", nine)
    assert fitted_id(nine, "nine", "f", 0) == nine == fitted_id(id, "nine", "g", 1)
    assert fitted_id(id, "any", "f", 0) == id
    assert fitted_id(id, "nine or more", "f", 0) == (id if len(id) >= 9 else nine)
    assert fitted_id(id, "function", "f", 3) == "functions.f:3" == fitted_id("functions.f:3", "function", "f", 4)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("any", "call_[0-9a-f]{24}"),
        ("nine", "[a-zA-Z0-9]{9}"),
        ("nine or more", "[a-zA-Z0-9]{9}"),
        ("function", r"functions\.f:2"),
    ],
)
def test_answers_have_ids_that_their_template_takes(form: IdForm, pattern: str) -> None:
    assert re.fullmatch(pattern, new_id(form, "f", 2))
    assert form == "function" or new_id(form, "f", 2) != new_id(form, "f", 2)
