"""`ptxrun doctor`, on a driver made of host memory and without one."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from executor.base.environment import settings
from executor.base.rules import RULES
from executor.choice.store import own_path, save
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from ptxgen.commands import console
from tests.cli.invoke import facts, invoke
from tests.executor.device.fake_driver import FakeDriver

H100 = "NVIDIA H100 80GB HBM3"
TODAY = date(2026, 11, 28).isoformat()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Instead of CUDA's: two H100."""
    fake = FakeDriver(gpus=2)
    fake.product = H100
    for module in ("cuda", "cuda_gpu"):
        monkeypatch.setattr(f"executor.device.{module}.driver", lambda: fake)
    return fake


def states(said: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    return {rule["name"]: (rule["on"], rule["why"]) for rule in said["rules"]}


def test_it_says_what_is_there_what_is_on_and_what_was_measured(driver: FakeDriver) -> None:
    said = facts("ptxrun", "doctor")
    assert said["driver"] is None
    assert [gpu["name"] for gpu in said["gpus"]] == [f"cuda:0 ({H100})", f"cuda:1 ({H100})"]
    assert (said["device"]["name"], said["device"]["reason"]) == (f"cuda:0 ({H100})", "the first GPU")
    assert said["device"]["target"] == "sm_90"
    assert said["measured"][0]["gpu"] == H100
    assert all(table["shipped"] and table["entries"] for table in said["measured"])
    assert list(states(said)) == list(RULES)
    assert states(said)["deferred_norms"][0]
    assert any(line.startswith("compiles its kernels by nvidia-nvjitlink") for line in said["first_load"])
    assert "`ptxrun tune MODEL` measures what is fastest for a model on this GPU" in said["suggestions"]


def test_without_a_driver_the_emulator_runs_and_the_reason_is_said() -> None:
    said = facts("ptxrun", "doctor", "--device", "emulator")
    assert (said["gpus"], said["device"]["kind"], said["measured"]) == ([], "emulator", [])
    assert said["driver"]
    assert said["suggestions"][0] == f"no GPU can be used: {said['driver']}"
    assert invoke("ptxrun", "doctor", "--device", "emulator").stdout.startswith("ptxgen ")


def test_what_the_environment_changes_is_said_with_what_it_costs(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PTXGEN_DEVICE_LIMITS": "rtx-4090",
        "PTXGEN_SWIGLU_FUSION": "0",
        "PTXGEN_TUNING": "0",
        "PTXGEN_CACHE_DIR": "0",
        "GPU_DEBUG": "1",
    }.items():
        monkeypatch.setenv(name, value)
    driver.free_bytes = driver.total_bytes // 4
    said = facts("ptxrun", "doctor")
    assert (said["limits"], said["device"]["target"], said["kernels"]["folder"]) == ("GeForce RTX 4090", "sm_89", None)
    assert said["gpus"][0]["target"] == "sm_90"
    assert states(said)["dependent_launches"] == (False, "needs sm_90, this is sm_89")
    assert states(said)["swiglu_fusion"] == (False, "PTXGEN_SWIGLU_FUSION says so")
    for start in (
        "256 of 1024 MiB are free", "PTXGEN_CACHE_DIR or", "PTXGEN_TUNING is off", "GPU_DEBUG is on",
        "PTXGEN_DEVICE_LIMITS is set", "PTXGEN_SWIGLU_FUSION switches off",
    ):  # fmt: skip
        assert any(line.startswith(start) for line in said["suggestions"]), start


def test_measurements_of_ones_own_have_their_days_and_say_when_they_are_of_other_versions(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path))
    gpu = GpuModel(H100, "sm_90", 132)
    entry = TuningEntry(
        "accurate", "q4k", 4096, 4096, "mwv_q4k_gemv", {}, 1e-5, error=1e-6, measured=TODAY, versions="ptxgen 0, sm_90 older"
    )
    path = own_path(gpu, settings())
    assert path is not None
    save(path, TuningTable(str(path), gpu, (entry,)))
    said = facts("ptxrun", "doctor")
    own = said["measured"][0]
    assert (own["shipped"], own["first"], own["last"], own["other_versions"]) == (False, TODAY, TODAY, 1)
    assert f"1 entries of {path} are of other versions: `ptxrun tune MODEL --again`" in said["suggestions"]
    text = invoke("ptxrun", "doctor").stdout
    assert TODAY in text
    assert all(len(line) <= console.WIDTH or str(tmp_path) in line for line in text.splitlines())
    assert json.dumps(said)
