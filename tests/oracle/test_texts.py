"""The canonical form of a text keeps what it does, and nothing of what things are called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle.texts import canonical, compared
from tests.paths import GOLDEN

TEXT = (GOLDEN / "ptx" / "hw_dp4a_q4k_gemv.ptx").read_text()
REGISTERS = sorted(set(re.findall(r"%r\d+", TEXT)))


@settings(max_examples=10)
@given(st.permutations(REGISTERS))
def test_other_names_and_comments_are_the_same_text(shuffled: list[str]) -> None:
    renamed = dict(zip(REGISTERS, shuffled, strict=True))
    other = re.sub(r"%r\d+", lambda found: renamed[found[0]], TEXT)
    for old, new in (("hw_dp4a_q4k_gemv", "gemv"), ("digits", "planes"), ("shared0", "staged"), ("$endif_", "$after_")):
        other = re.sub(rf"{re.escape(old)}(?=\w*)", new, other)
    assert other != TEXT
    assert canonical(re.sub(r"//", "// more of it:", other, count=3)) == canonical(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%r1, %r0, 3", "%r1, %r0, 2"),
        ("mul.lo.u32", "add.u32"),
        ("%r9, %r6, %r8", "%r9, %r8, %r6"),
        ("shared0[1152]", "shared0[1024]"),
        ("%r21, shared0", "%r21, shared1"),
        ("[digits]", "[w]"),
        (".maxntid 64", ".maxntid 128"),
    ],
)
def test_another_instruction_operand_or_size_is_another_text(old: str, new: str) -> None:
    assert old in TEXT
    assert canonical(TEXT.replace(old, new, 1)) != canonical(TEXT)


def test_kernels_are_compared_by_what_they_do() -> None:
    kept = {"a": {"sm_75": "1"}, "b": {"sm_75": "2"}, "c": {"sm_75": "3"}, "d": {"sm_75": "4"}}
    now = {"a": {"sm_75": "1"}, "new": {"sm_75": "2"}, "c": {"sm_75": "5"}, "copy": {"sm_75": "1"}}
    assert compared(kept, now) == ["b is new now", "c changed", "d is gone"]
