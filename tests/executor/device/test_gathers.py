"""By what devices gather: what is asked for, what they can, what is installed; and what is said where nothing goes."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from executor import CudaExecutor
from executor.base.environment import settings
from executor.base.errors import DeviceError, MissingExtra
from executor.device import open_devices
from executor.device.emulated import EmulatedDevice
from executor.device.gather_choice import choose
from executor.device.gathers import PEERS, Gathers
from executor.device.nccl import core
from executor.device.several import SeveralDevices
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.launch.nccl_all_gather import NcclAllGather
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.types import F32
from tests.executor.device.fake_driver import FakeDriver
from tests.executor.device.fake_nccl import FakeNccl, installed

GPUS = ["cuda:0", "cuda:1"]


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    return installed(monkeypatch)


def gathers(text: str, monkeypatch: pytest.MonkeyPatch) -> Gathers:
    monkeypatch.setenv("PTXGEN_GATHERS", text)
    with open_devices(GPUS) as devices:
        return devices.gathers


@given(st.integers(1, 1 << 60), st.integers(1, 1 << 60))
def test_a_number_of_bytes_says_from_where_on(limit: int, nbytes: int) -> None:
    chosen = Gathers(limit)
    assert chosen.by_nccl(limit)
    assert not chosen.by_nccl(limit - 1)
    assert chosen.by_nccl(nbytes) == (nbytes >= limit)
    assert chosen.nccl
    assert str(limit) in str(chosen)
    assert not PEERS.by_nccl(nbytes)


def test_the_environment_says_by_what(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathers("", monkeypatch) == gathers("0", monkeypatch) == PEERS
    assert gathers("peer", monkeypatch).nccl_from is None
    assert not nccl.log
    assert gathers("nccl", monkeypatch) == Gathers(0, "asked for")
    assert nccl.log[0] == "set up [0, 1]"
    assert gathers("1048576", monkeypatch) == Gathers(1 << 20, "asked for")
    for wrong in ("ncll", "-1", "1e6", "PEER"):
        monkeypatch.setenv("PTXGEN_GATHERS", wrong)
        with pytest.raises(ArgumentError, match=r"PTXGEN_GATHERS is .*; allowed: peer or nccl, or a whole number"):
            settings()


def test_kernels_of_ours_need_a_way_and_nccl_opens_none(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    gathers("nccl", monkeypatch)
    assert nccl.driver.reached == []
    gathers("4096", monkeypatch)
    assert len(nccl.driver.reached) == 2


def test_gpus_without_a_way_gather_by_nccl_and_say_so(
    nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nccl.driver.apart = {(0, 1), (1, 0)}
    with caplog.at_level(logging.INFO):
        chosen = gathers("", monkeypatch)
    assert str(chosen) == "NCCL (no peer access between cuda:0 (Fake GPU), cuda:1 (Fake GPU))"
    assert f"gathers: {chosen}" in caplog.messages
    with CudaExecutor(devices=GPUS) as executor:
        assert executor.device.describe()["gathers"] == str(chosen)


@pytest.mark.parametrize("asked", ["peer", "4096"])
def test_who_asks_for_kernels_of_ours_gets_no_other(asked: str, nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl.driver.apart = {(1, 0)}
    with pytest.raises(DeviceError, match=r"between cuda:1 .* and cuda:0 .*PTXGEN_GATHERS=nccl NCCL gathers"):
        gathers(asked, monkeypatch)
    assert not any(nccl.driver.live.values())


def test_without_a_way_and_without_nccl_both_are_named(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.gpus, driver.apart = 3, {(0, 2), (2, 0)}
    monkeypatch.setattr("executor.device.gather_choice.installed", lambda: False)
    with pytest.raises(DeviceError, match=r"between cuda:0 .* and cuda:2 ") as refused:
        open_devices(["cuda:0", "cuda:1", "cuda:2"])
    assert 'NCCL gathers without it: pip install "nccl4py' in str(refused.value)
    assert "cuda:1" not in str(refused.value)
    assert not any(driver.live.values())


def test_nccl_that_is_asked_for_and_not_installed_is_an_extra(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    driver.gpus = 2
    monkeypatch.setitem(sys.modules, "nccl.core", None)
    monkeypatch.setattr("executor.device.nccl.driver", lambda: driver)
    with pytest.raises(MissingExtra, match=r'takes nccl4py .*: pip install "nccl4py'):
        core()
    with pytest.raises(MissingExtra):
        gathers("nccl", monkeypatch)
    assert not any(driver.live.values())


@pytest.mark.parametrize("asked", ["nccl", "4096"])
def test_the_emulator_has_no_nccl(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_GATHERS", asked)
    with pytest.raises(DeviceError, match=r"NCCL gathers on GPUs, and emulator .* is none; leave PTXGEN_GATHERS unset, or say"):
        open_devices(["emulator", "emulator"])
    monkeypatch.setenv("PTXGEN_GATHERS", "peer")
    with open_devices(["emulator", "emulator"]) as devices:
        assert not devices.gathers.nccl


def test_a_gather_of_nccls_is_for_devices_that_have_it() -> None:
    kernel = NcclAllGather(count=4, ranks=2)
    for devices in (SeveralDevices([EmulatedDevice(), EmulatedDevice()]), EmulatedDevice()):
        with devices:
            x, y = (GpuBuffer.zeros(devices, F32, shape) for shape in ((4,), (2, 4)))
            with pytest.raises(DeviceError, match=r"cannot launch nccl_all_gather\(count=4, ranks=2\): it gathers by kernels"):
                Launcher(devices, Modules(devices)).prepare(kernel, x=x, y=y)


@given(st.one_of(st.integers(max_value=-1), st.text(), st.booleans(), st.floats()))
def test_what_says_nothing_is_refused(asked: Any) -> None:
    assume(asked not in ("peer", "nccl"))
    with EmulatedDevice() as device, pytest.raises(ArgumentError):
        choose([SimpleNamespace(kind="cuda", name=device.name)], asked)


@given(count=st.integers(-2, 3), ranks=st.integers(-1, 10))
def test_sizes_of_a_gather_are_checked(count: int, ranks: int) -> None:
    if count >= 1 and 2 <= ranks <= 8:
        assert NcclAllGather(count=count, ranks=ranks).work().bytes == 4 * count * (1 + ranks)
        return
    with pytest.raises(ArgumentError):
        NcclAllGather(count=count, ranks=ranks)


def test_from_no_bytes_on_all_is_nccls_and_needs_no_way() -> None:
    gpu = SimpleNamespace(kind="cuda", name="a GPU")  # which nobody can ask for a way
    assert choose([gpu, gpu], 0) == Gathers(0, "asked for")
