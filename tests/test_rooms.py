"""The rooms stand in layers and their imports point one way, those for types included; each arrow is one that tests/rooms.py
allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rooms import ARROWS, ROOT, arrows, modules, room_of
from tests.rooms_picture import PICTURE, draw, sentence


def forbidden(root: Path) -> list[str]:
    return sorted(
        f"{place}: {importer} imports {imported}"
        for (importer, imported), places in arrows(root).items()
        if imported not in ARROWS.get(importer, ())
        for place in places
    )


def test_every_import_is_allowed() -> None:
    assert forbidden(ROOT) == []


def test_the_table_has_no_arrow_that_leads_back() -> None:
    order = list(ARROWS)
    assert [(room, below) for room, rooms in ARROWS.items() for below in rooms if order.index(below) >= order.index(room)] == []


def test_the_table_has_no_arrow_and_no_room_that_the_code_has_not() -> None:
    assert {(room, below) for room, rooms in ARROWS.items() for below in rooms} == set(arrows())
    known = modules()
    assert set(ARROWS) == {room_of(module, known) for module in known}


def test_ptxgen_imports_nothing_of_executor() -> None:
    assert [ends for ends in arrows() if ends[0].startswith("ptxgen") and ends[1].startswith("executor")] == []


WRONG = {
    "from executor.model.decoder import Decoder": "executor.layers imports executor.model",
    "import executor.api.executor": "executor.layers imports executor.api",
    "from executor import CudaExecutor": "executor.layers imports executor",
    "from ..tune import tune": "executor.layers imports executor.tune",
    "if TYPE_CHECKING:\n    from executor.measure.profiler import Profiler": "executor.layers imports executor.measure",
    "def f() -> None:\n    from executor.commands.cli import main": "executor.layers imports executor.commands",
}


@pytest.mark.parametrize(("line", "fault"), WRONG.items())
def test_an_import_that_is_put_the_wrong_way_is_found(tmp_path: Path, line: str, fault: str) -> None:
    """The house with all its files empty but for one import."""
    for file in modules().values():
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    (tmp_path / "executor" / "layers" / "attention.py").write_text(f"{line}\n")
    (found,) = forbidden(tmp_path)
    assert found.startswith("executor/layers/attention.py:")
    assert found.endswith(fault)


def test_the_picture_is_drawn_from_this_code() -> None:
    assert PICTURE.read_text() == draw(), "old: run `python -m tests.rooms_picture`"


def test_every_room_says_what_it_is_for() -> None:
    assert [room for room in ARROWS if not sentence(room)] == []
