"""The figures of the structure count what they say."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.structure import FIGURES, circles, components, deciders, kernel_classes, long_files, main

KNOWN_CIRCLES = [
    {
        f"ptxgen.kernels.gemv.{file}"
        for file in (
            "gated_hw_dp4a", "gated_sent", "hw_dp4a", "hw_dp4a_normed", "joined_hw_dp4a", "mixed_hw_dp4a", "row_digits",
        )
    },
]  # fmt: skip
"""Circles of files that are left to cut."""


@pytest.mark.slow
def test_each_figure_is_counted_and_printed_beside_its_goal() -> None:
    said = json.loads(CliRunner().invoke(main, ["--json"], catch_exceptions=False).stdout)
    assert list(said) == [figure.what for figure in FIGURES]
    assert all(isinstance(one["is"], int) and one["is"] >= 0 <= one["goal"] for one in said.values())


@pytest.mark.slow
def test_no_circle_of_files_inside_a_room_is_new() -> None:
    assert [one for one in circles() if not any(one <= known for known in KNOWN_CIRCLES)] == []


def test_no_file_is_too_long() -> None:
    assert long_files() == []


def test_who_decides_and_what_combines_is_found() -> None:
    assert "executor/layers/gemv.py: _joined" in deciders()
    assert {"HwDp4aGemv", "HwDp4aGemvResidualNormed", "GemvType"} <= {one.__name__ for one in kernel_classes()}


@pytest.mark.parametrize(
    ("edges", "circles"),
    [
        ({"a": {"b"}, "b": {"c"}}, []),
        ({"a": {"b"}, "b": {"a", "c"}, "c": set()}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d", "a"}}, [{"a", "b", "c"}, {"d", "e"}]),
    ],
)
def test_a_circle_is_what_reaches_itself(edges: dict[str, set[str]], circles: list[set[str]]) -> None:
    assert sorted((one for one in components(edges) if len(one) > 1), key=min) == circles
