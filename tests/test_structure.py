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


@pytest.mark.slow
def test_no_files_inside_a_room_import_each_other() -> None:
    assert circles() == []


def test_no_file_is_too_long() -> None:
    assert long_files() == []


def test_who_decides_and_what_combines_is_found() -> None:
    assert "executor/layers/projection.py: bind" in deciders()
    assert not any(one.startswith("executor/layers/graph/") for one in deciders())
    assert {"HwDp4aGemv", "GemvType"} <= {one.__name__ for one in kernel_classes()}


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
