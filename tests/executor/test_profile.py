"""Environment variables count by their value: 0 is off, nonsense is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.profile import GpuProfile, settings
from ptxgen.errors import ArgumentError


def test_without_variables_the_users_cache_folder_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PTXGEN_CACHE_DIR")
    chosen = settings()
    assert chosen.cache_dir is not None
    assert chosen.cache_dir.name == "ptxgen"
    assert chosen.cache_limit_bytes == 512 << 20
    assert chosen.emulator_workers >= 1


@pytest.mark.parametrize(("name", "value"), [("PTXGEN_CACHE_DIR", "0"), ("PTXGEN_CACHE_LIMIT_MB", "0")])
def test_zero_switches_the_disk_cache_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert settings().cache_dir is None


def test_values_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PTXGEN_CACHE_LIMIT_MB", "3")
    monkeypatch.setenv("PTXGEN_EMULATOR_WORKERS", "0")
    chosen = settings()
    assert (chosen.cache_dir, chosen.cache_limit_bytes, chosen.emulator_workers) == (tmp_path, 3 << 20, 1)


@pytest.mark.parametrize("name", ["PTXGEN_CACHE_LIMIT_MB", "PTXGEN_EMULATOR_WORKERS"])
@pytest.mark.parametrize("value", ["yes", "-1", "1.5"])
def test_what_is_not_a_number_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"{name} is '{value}'"):
        settings()


def test_a_format_gets_the_kernel_that_its_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_GEMV_Q4K", "my_q4k_gemv")
    monkeypatch.setenv("PTXGEN_GEMV_Q8_0", "0")
    profile = GpuProfile.from_environment()
    assert profile.gemv_name("q4k") == "my_q4k_gemv"
    assert profile.gemv_name("q8_0") == "q8_0_gemv"


def test_a_variable_for_a_format_that_does_not_exist_is_an_error_that_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_GEMV_Q9", "my_q9_gemv")
    with pytest.raises(ArgumentError, match=r"a GEMV for 'q9', which is no format; formats: f32, f16, .*q4k"):
        GpuProfile.from_environment()
