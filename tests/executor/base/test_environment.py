"""Environment variables count by their value: 0 and false are off, nonsense and names that do not exist are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.base.environment import VARIABLES, help_text, markdown, parse_variant, settings
from ptxgen.errors import ArgumentError
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "settings.md").read_text()


def test_without_variables_the_defaults_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PTXGEN_CACHE_DIR")
    said = settings()
    assert said.cache_dir is not None
    assert said.cache_dir.name == "ptxgen"
    assert said.cache_limit_bytes == 512 << 20
    assert said.emulator_workers >= 1
    assert (said.precision, said.gemv, said.tuning, said.debug) == (None, {}, True, False)
    assert said.batch_invariant is False


@pytest.mark.parametrize("off", ["0", "false", "FALSE", " False "])
def test_zero_and_false_switch_off_whatever_the_variable(monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    for variable in VARIABLES:
        for name in variable.names:
            monkeypatch.setenv(name, off)
    said = settings()
    assert (said.cache_dir, said.cache_limit_bytes, said.emulator_workers) == (None, 0, 1)
    assert (said.precision, said.gemv, said.tuning, said.debug) == (None, {}, False, False)


@pytest.mark.parametrize("on", ["1", "true", "True"])
def test_one_and_true_switch_on(monkeypatch: pytest.MonkeyPatch, on: str) -> None:
    monkeypatch.setenv("GPU_DEBUG", on)
    monkeypatch.setenv("PTXGEN_TUNING", on)
    monkeypatch.setenv("PTXGEN_BATCH_INVARIANT", on)
    said = settings()
    assert (said.debug, said.tuning, said.batch_invariant) == (True, True, True)


def test_values_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "PTXGEN_CACHE_DIR": str(tmp_path),
        "PTXGEN_CACHE_LIMIT_MB": "3",
        "PTXGEN_EMULATOR_WORKERS": "5",
        "PTXGEN_PRECISION": "fast",
        "PTXGEN_GEMV_Q4K": "my_q4k_gemv",
        "PTXGEN_GEMV_Q8_0": "mwv_q8_0_gemv:num_warps=8",
        "PTXGEN_TUNING": str(tmp_path / "table.json"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    said = settings()
    assert (said.cache_dir, said.cache_limit_bytes, said.emulator_workers) == (tmp_path, 3 << 20, 5)
    assert said.precision == "fast"
    assert said.gemv == {"q4k": "my_q4k_gemv", "q8_0": "mwv_q8_0_gemv:num_warps=8"}
    assert said.tuning == tmp_path / "table.json"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PTXGEN_CACHE_LIMIT_MB", "yes", "a whole number of MiB"),
        ("PTXGEN_CACHE_LIMIT_MB", "-1", "a whole number of MiB"),
        ("PTXGEN_EMULATOR_WORKERS", "1.5", "a whole number"),
        ("PTXGEN_PRECISION", "exact", "accurate or fast"),
        ("PTXGEN_PRECISION", "1", "accurate or fast"),
        ("GPU_DEBUG", "yes", "1 or 0"),
        ("PTXGEN_BATCH_INVARIANT", "2", "1 or 0"),
        ("PTXGEN_GEMV_Q4K", "mwv_q4k_gemv:num_warps", "NAME or NAME:parameter=value"),
        ("PTXGEN_GEMV_Q4K", "mwv_q4k_gemv:num_warps=many", "NAME or NAME:parameter=value"),
    ],
)
def test_a_value_that_is_not_allowed_is_an_error_that_names_variable_value_and_what_is(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"{name} is '{value}'; allowed: {allowed}"):
        settings()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PTXGEN_CACHEDIR", "near: PTXGEN_CACHE_DIR"),
        ("PTXGEN_GEMV_Q9_0", "near: .*PTXGEN_GEMV_Q8_0"),
        ("PTXGEN_COLOUR_OF_THE_SKY", "known: PTXGEN_CACHE_DIR, .*GPU_DEBUG"),
    ],
)
def test_a_name_that_looks_like_ours_and_is_not_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    monkeypatch.setenv(name, "0")
    with pytest.raises(ArgumentError, match=f"no environment variable {name}; {said}"):
        settings()


def test_variables_of_the_tests_are_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_TEST_ANYTHING", "x")
    settings()


def test_a_variant_is_a_name_with_parameters() -> None:
    assert parse_variant("mwv_q4k_gemv") == ("mwv_q4k_gemv", {})
    assert parse_variant("hw_dp4a_q4k_gemv:digits=2, pdl=true") == ("hw_dp4a_q4k_gemv", {"digits": 2, "pdl": True})


def test_page_and_help_list_the_variables_of_the_table() -> None:
    assert markdown() in PAGE
    assert all(variable.name in help_text() and variable.name in markdown() for variable in VARIABLES)
