"""A cache folder that others own or may write to: nothing in it is believed, followed or waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executor.base.disk_cache import DiskCache, trim
from executor.choice.choice import GpuProfile
from executor.choice.store import own_path, save
from executor.choice.table import TuningTable
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.device.gpu import GpuModel
from executor.launch.modules import Modules
from executor.measure import bandwidth
from ptxgen.emulator import compile_module
from ptxgen.errors import ArgumentError
from tests.cli.invoke import invoke
from tests.executor.device.fake_driver import FakeDriver
from tests.executor.launch.kernels import Scale

LEVELS = ("", "kernels", "kernels/emulator")


def compiled(cache: Path) -> tuple[int, int]:
    """Kernels compiled and taken from disk, of one that is asked for."""
    with EmulatedDevice() as device:
        modules = Modules(device, cache)
        modules.load(Scale(n=100))
        modules.close()
        return modules.counts.misses, modules.counts.disk_hits


@pytest.mark.parametrize("level", LEVELS)
def test_code_in_a_folder_that_others_may_write_to_is_not_run(
    own_cache: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert [compiled(own_cache), compiled(own_cache)] == [(1, 0), (0, 1)]
    (own_cache / level).chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in own_cache.rglob("*")}
    assert compiled(own_cache) == (1, 0)
    assert {path: path.stat().st_mtime_ns for path in own_cache.rglob("*")} == before
    assert [record.message.split(": ")[1][:27] for record in caplog.records] == ["others may write to it (mod"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("level", LEVELS)
def test_code_in_a_folder_of_another_user_is_not_run(own_cache: Path, level: str, caplog: pytest.LogCaptureFixture) -> None:
    compiled(own_cache)
    os.chown(own_cache / level, 4242, -1)
    assert compiled(own_cache) == (1, 0)
    assert "it belongs to user 4242, and this is user 0" in caplog.text


@pytest.mark.parametrize("planted", ["pipe", "link", "open"])
def test_an_entry_that_is_not_ones_own_file_is_made_again(own_cache: Path, planted: str, tmp_path: Path) -> None:
    compiled(own_cache)
    (entry,) = own_cache.rglob("*.o")
    if planted == "open":
        entry.chmod(0o666)
    else:
        entry.rename(tmp_path / "elsewhere.o")
        os.mkfifo(entry) if planted == "pipe" else entry.symlink_to(tmp_path / "elsewhere.o")
    assert [compiled(own_cache), compiled(own_cache)] == [(1, 0), (0, 1)]
    assert entry.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("planted", ["pipe", "link", "open"])
def test_machine_code_for_a_gpu_that_is_not_ones_own_file_is_made_again(planted: str, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "kernels", 10_000)
    cache.put("a", b"code")
    (entry,) = cache.folder.iterdir()
    if planted == "open":
        entry.chmod(0o666)
    else:
        entry.rename(tmp_path / "elsewhere.bin")
        os.mkfifo(entry) if planted == "pipe" else entry.symlink_to(tmp_path / "elsewhere.bin")
    assert cache.get("a") is None
    cache.put("a", b"code")
    assert cache.get("a") == b"code"


def test_the_emulators_own_callers_get_no_code_of_others_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n"
    tmp_path.chmod(0o777)
    assert not compile_module(text, cache_dir=tmp_path).kernel("k").from_cache
    assert list(tmp_path.iterdir()) == []
    assert "others may write to it" in caplog.text


def test_room_is_made_by_removing_entries_only(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_bytes(bytes(1000))
    (tmp_path / "elsewhere.bin").write_bytes(bytes(1000))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.txt").write_bytes(bytes(1000))
    (tmp_path / "cache" / "link.bin").symlink_to(tmp_path / "elsewhere.bin")
    (tmp_path / "cache" / "entry.bin").write_bytes(bytes(1000))
    trim(tmp_path / "cache", 0)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["link.bin", "thesis.txt"]
    assert (tmp_path / "elsewhere.bin").exists()


@pytest.fixture
def gpu(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    monkeypatch.setattr(bandwidth, "_measured", lambda device: 4e12)
    return driver


def test_measurements_in_a_folder_of_others_are_refused(gpu: FakeDriver, own_cache: Path) -> None:
    from executor.base.environment import settings

    with CudaDevice() as device:
        bandwidth.bandwidth(device)
        path = own_path(GpuModel.of(device), settings())
        assert path is not None
        save(path, TuningTable(str(path), GpuModel.of(device)))
        GpuProfile.for_device(device)
        own_cache.chmod(0o777)
        for ask in (GpuProfile.for_device, bandwidth.bandwidth, bandwidth.known_bandwidth):
            with pytest.raises(ArgumentError, match=r"cannot be used as a cache: others may write to it .*PTXGEN_CACHE_DIR"):
                ask(device)


def test_measurements_that_are_a_pipe_or_nested_without_end_are_refused(gpu: FakeDriver, own_cache: Path) -> None:
    own_cache.mkdir(mode=0o700)
    path = own_cache / "bandwidth.json"
    with CudaDevice() as device:
        os.mkfifo(path)
        with pytest.raises(ArgumentError, match=r"bandwidth.json cannot be read .*not a regular file"):
            bandwidth.bandwidth(device)
        path.unlink()
        path.write_text("[" * 200_000)
        with pytest.raises(ArgumentError, match=r"bandwidth.json cannot be read"):
            bandwidth.bandwidth(device)


def test_a_cache_folder_with_a_name_that_is_too_long_is_said_in_a_sentence(
    gpu: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    long = tmp_path / ("x" * 5000)
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(long))
    assert compiled(long) == (1, 0)
    assert "File name too long" in caplog.text
    with CudaDevice() as device:
        GpuProfile.for_device(device)
        with pytest.raises(ArgumentError, match="cannot be used as a cache: File name too long"):
            bandwidth.bandwidth(device)
    demo = invoke("ptxrun", "demo")
    assert (demo.exit_code, demo.stderr.count("\n")) == (2, 1)
    assert demo.stderr.endswith("File name too long\n")
