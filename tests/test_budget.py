"""The gate on the time of the essential tests: it grows for a slow machine, for no other reason, and it can fail."""

from __future__ import annotations

import pytest

from tests import budget
from tests.budget import ALL, allowed, main, main_of_all
from tests.essential import BUDGET


@pytest.mark.parametrize(
    ("before", "after", "factor"), [(1, 1, 1), (0.5, 2, 1), (2, 2, 1), (3, 1, 1.5), (1, 3, 1.5), (4, 5, 2.5), (5, 4, 2.5)]
)
def test_the_time_allowed_is_the_budget_for_half_the_speed_and_more_only_for_less(
    before: float, after: float, factor: float
) -> None:
    assert allowed(before, after, BUDGET) == BUDGET * factor


@pytest.mark.parametrize(
    ("command", "most", "code"), [("true", 60, 0), ("exit 3", 60, 3), ("false | true", 60, 1), ("true", 0, 1)]
)
def test_a_command_that_fails_or_takes_too_long_fails(
    command: str, most: float, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "slowness", iter((1.0, 3.0)).__next__)
    monkeypatch.setattr(budget, "BUDGET", most)
    assert main(command) == code
    assert f" s of {most * 1.5:.0f} s: " in capfd.readouterr().out


@pytest.mark.parametrize(("seconds", "code"), [(ALL, 0), (1.5 * ALL, 0), (1.5 * ALL + 1, 1)])
def test_all_of_ci_has_a_budget_that_grows_as_that_of_the_tests(
    seconds: float, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "slowness", lambda: 3.0)
    assert main_of_all(seconds) == code
    assert f"{seconds:.0f} s of {1.5 * ALL:.0f} s: " in capfd.readouterr().out


def test_slowness_is_that_of_the_slowest_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "ROUNDS", 1)
    assert 0.1 < budget.slowness() < 100
