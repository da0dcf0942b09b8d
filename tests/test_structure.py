"""The figures of the structure count what they say."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.structure import FIGURES, circles, components, deciders, kernel_classes, long_files, main


@pytest.mark.slow
def test_each_figure_is_counted_and_printed_beside_its_goal() -> None:
    said = json.loads(CliRunner().invoke(main, ["--json"], catch_exceptions=False).stdout)
    assert list(said) == [figure.what for figure in FIGURES]
    assert all(isinstance(one["is"], int) and one["is"] >= 0 <= one["goal"] for one in said.values())


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


@pytest.mark.slow
def test_the_executor_has_no_circle_of_files_and_no_long_one() -> None:
    assert [circle for circle in circles() if min(circle).startswith("executor.")] == []
    assert [file for file in long_files() if file.startswith("executor/")] == []
