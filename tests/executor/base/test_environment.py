"""Environment variables count by their value: 0 and false are off, nonsense and names that do not exist are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.base.environment import API_KEY, VARIABLES, help_text, markdown, parse_variant, settings
from executor.base.environment_variable import EnvironmentVariable
from executor.base.rules import RENAMED
from executor.choice.choice import GpuProfile
from executor.choice.persistent import choose_persistent
from executor.device.dry_run import DryRunDevice
from executor.device.gpu import GpuModel
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "settings.md").read_text()


def test_without_variables_the_defaults_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PTXGEN_CACHE_DIR")
    said = settings()
    assert said.cache_dir is not None
    assert said.cache_dir.name == "ptxgen"
    assert said.cache_limit_bytes == 512 << 20
    assert said.emulator_workers >= 1
    assert said.emulator_seconds is None
    assert (said.precision, said.gemv, said.tuning, said.debug) == (None, {}, True, False)
    assert said.rules == {}


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
    assert (said.debug, said.tuning, said.rules) == (True, True, {"batch_invariant": True})


def test_values_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "PTXGEN_CACHE_DIR": str(tmp_path),
        "PTXGEN_CACHE_LIMIT_MB": "3",
        "PTXGEN_EMULATOR_WORKERS": "5",
        "PTXGEN_EMULATOR_SECONDS": "60",
        "PTXGEN_PRECISION": "fast",
        "PTXGEN_GEMV_Q4K": "my_q4k_gemv",
        "PTXGEN_GEMV_Q8_0": "mwv_q8_0_gemv:num_warps=8",
        "PTXGEN_TUNING": str(tmp_path / "table.json"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    said = settings()
    assert (said.cache_dir, said.cache_limit_bytes, said.emulator_workers) == (tmp_path, 3 << 20, 5)
    assert said.emulator_seconds == 60
    assert said.precision == "fast"
    assert said.gemv == {"q4k": "my_q4k_gemv", "q8_0": "mwv_q8_0_gemv:num_warps=8"}
    assert said.tuning == tmp_path / "table.json"


WRONG: dict[str, list[str]] = {
    "PTXGEN_CACHE_DIR": ["FILE", "~nobody-of-this-name/x"],
    "PTXGEN_MODEL_DIR": ["FILE"],
    "PTXGEN_CACHE_LIMIT_MB": ["-1", "1.5", "much", "9" * 5000],
    "PTXGEN_EMULATOR_WORKERS": ["-1", "1025", "all"],
    "PTXGEN_EMULATOR_SECONDS": ["soon", "-1", "1.5"],
    "PTXGEN_PRECISION": ["exact", "1"],
    "PTXGEN_GEMV_<FORMAT>": [
        "nosuch", "rmsnorm", "mwv_mxfp4_gemv", ":", "mwv_{id}_gemv:num_warps", "mwv_{id}_gemv:nosuch=1", "mwv_{id}_gemv:k=64",
    ],
    "PTXGEN_TUNING": ["FOLDER", "FILE", "/nowhere/table.json"],
    "PTXGEN_GATHERS": ["mpi", "-1", "9" * 5000],
    "PTXGEN_DEVICE_LIMITS": ["rtx4091", "sm_89", "1"],
    "PTXGEN_API_KEY": ["se cret", "se\u00e9cret", "se\tcret"],
}  # fmt: skip
"""By variable, values that are not allowed; those of one that is not here are of a switch."""


def read_all(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Read all variables, of which one has this value, and choose kernels by them."""
    with environment.context() as patch:
        patch.setenv(name, value)
        settings()
        API_KEY.read()
        GpuProfile.for_device(DryRunDevice(GpuModel("a GPU", "sm_90", 1)).as_device)


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_a_wrong_value_of_any_variable_is_told_with_variable_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: EnvironmentVariable[Any], tmp_path: Path
) -> None:
    file = tmp_path / "a file"
    file.write_text("no table")
    for id, name in zip(("q4k", "q8_0"), variable.names, strict=False):
        for wrong in WRONG.get(variable.name, ["yes", "2", "on"]):
            value = wrong.replace("FILE", str(file)).replace("FOLDER", str(tmp_path)).replace("{id}", id)
            with pytest.raises(ArgumentError) as caught:
                read_all(monkeypatch, name, value)
            shown = "set to what is not shown" if variable.secret else repr(value)
            assert str(caught.value).startswith(f"environment variable {name} is {shown}; allowed: {variable.allowed}")


def test_the_table_of_wrong_values_is_of_variables_that_there_are() -> None:
    assert WRONG.keys() <= {variable.name for variable in VARIABLES}
    switches = [variable for variable in VARIABLES if variable.name not in WRONG]
    assert all(variable.allowed == "1 or 0" for variable in switches)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PTXGEN_DEPENDENT_LAUNCHES", "1"),
        ("PTXGEN_WEIGHT_PIPELINES", "1"),
        ("PTXGEN_PERSISTENT_LAYERS", "1"),
        ("PTXGEN_GEMV_Q4K", "mwv_q4k_gemv:num_warps=77"),
    ],
)
def test_an_error_about_what_a_variable_asks_for_names_it(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    old = DryRunDevice(GpuModel("a GPU", "sm_75", 1)).as_device
    with pytest.raises(ArgumentError, match=rf"\(environment variable {name} is '{value}'\)"):  # noqa: PT012 whichever it is
        profile = GpuProfile.for_device(old)
        profile.require_on(old.target)
        choose_persistent(profile, old.target, 1)
        profile.choose(FORMATS["Q4_K"], 256, 64)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PTXGEN_CACHEDIR", "near: PTXGEN_CACHE_DIR"),
        ("PTXGEN_GEMV_Q9_0", "near: .*PTXGEN_GEMV_Q8_0"),
        *((f"PTXGEN_{old.upper()}", f"it is PTXGEN_{new.upper()} now") for old, new in RENAMED.items()),
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
