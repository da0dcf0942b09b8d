"""The split into essential and slow tests: nothing is without essential tests, and what is slow has a sister that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgen.conformance.report import planned
from ptxgen.formats import FORMATS
from tests import essential
from tests.conftest import GONE, NEVER_ESSENTIAL
from tests.essential import is_essential
from tests.paths import ROOT
from tests.ptxgen.kernels.catalogue import ENTRIES, REPRESENTATIVES


def test_every_file_that_was_collected_has_essential_tests(request: pytest.FixtureRequest) -> None:
    assert request.config.stash[NEVER_ESSENTIAL] == []


def test_every_test_that_was_recorded_as_slow_is_there(request: pytest.FixtureRequest) -> None:
    assert request.config.stash[GONE] == [], "run them and the rest of their files with --record-slow"


def test_recording_keeps_what_did_not_run_and_leaves_each_file_its_quickest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(essential, "RECORDED", tmp_path / "slow.txt")
    monkeypatch.setattr(essential, "recorded", lambda: frozenset({"a::kept", "a::quick"}))
    essential.record({"a::quick": 0.1, "a::long": 0.7, "b::long": 0.7, "b::longer": 0.8})
    assert (tmp_path / "slow.txt").read_text() == "a::kept\na::long\nb::longer\n"


def test_every_strategy_and_every_format_has_a_kernel_with_essential_tests() -> None:
    kept = [entry for entry in ENTRIES if is_essential(entry)]
    assert {entry.name for entry in kept} == REPRESENTATIVES
    assert {entry.type for entry in kept} == {entry.type for entry in ENTRIES}
    assert {entry.fixed.get("format") for entry in kept} >= set(FORMATS.values())


def test_a_kernel_with_essential_tests_has_every_check_but_that_of_tails_at_one_shape() -> None:
    kept = [check for check in planned("q4k_gemv") if is_essential(check)]
    assert [check.name for check in kept] == ["cases", "refusals", "signature", "text", "assembly", "emulator"]
    assert len({check.subject for check in kept}) == 2
    assert not [check for check in planned("q5k_gemv") if is_essential(check)]


@pytest.mark.parametrize("folder", ["ptxgen", "executor"])
def test_tests_stand_in_rooms_as_the_packages_do(folder: str) -> None:
    def rooms(path: Path) -> set[str]:
        return {inner.name for inner in path.iterdir() if (inner / "__init__.py").exists()}

    assert rooms(ROOT / "tests" / folder) <= rooms(ROOT / folder)


def test_the_files_that_took_most_are_named_with_what_all_took() -> None:
    lines = essential.by_file({"a.py::one": 1.0, "b.py::x[c]": 5.0, "a.py::two": 2.5, "c.py::y": 0.25}, most=2)
    assert [line.split() for line in lines] == [["8.8", "s", "all", "files"], ["5.0", "s", "b.py"], ["3.5", "s", "a.py"]]
