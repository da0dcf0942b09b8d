"""Each text is emitted once, compiled once for a GPU and toolchain, and found again on disk by the next process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from executor.base.errors import DeviceError
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import LoadedKernel
from executor.launch.modules import Modules
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.executor.device.fake_driver import FakeDriver, R
from tests.executor.launch.fake import RememberingDevice
from tests.executor.launch.kernels import Accumulate, Scale


class Assembling(RememberingDevice):
    """Compiles as a GPU would: PTX -> cubin. Loads nothing; `images` holds what it was given to load."""

    def __init__(self, toolchain: str = "1") -> None:
        super().__init__()
        self.toolchain = toolchain
        self.compiled = 0
        self.images: list[bytes] = []

    @property
    def build(self) -> str:
        return f"sm_90 toolchain {self.toolchain}"

    def compile(self, text: str) -> bytes | None:
        self.compiled += 1
        return assemble(text, self.target).cubin

    def load(
        self, text: str, entry: str, image: bytes | None = None, cache_dir: Path | None = None, dynamic_shared: int = 0,
        cooperative: bool = False, shared_room: int = 0,
    ) -> tuple[LoadedKernel, bool]:  # fmt: skip
        assert image is not None
        self.images.append(image)
        return LoadedKernel(entry, None), False


def test_the_same_kernel_is_emitted_and_loaded_once() -> None:
    modules = Modules(Assembling())
    first = modules.load(Scale(n=100))
    assert modules.load(Scale(n=100)) is first
    assert (modules.counts.emissions, modules.counts.misses, modules.counts.memory_hits) == (1, 1, 1)


def test_kernels_of_one_text_share_one_load() -> None:
    @dataclass(frozen=True)
    class Twin(Scale):
        """y = x * factor + offset, f32[n]; offset is a u32 of at most 1000."""

        def __str__(self) -> str:
            return super().__str__()

    device = Assembling()
    modules = Modules(device)
    assert modules.load(Twin(n=100)) is modules.load(Scale(n=100))
    assert (modules.counts.emissions, device.compiled, modules.counts.memory_hits) == (2, 1, 1)


def test_another_shape_is_another_kernel() -> None:
    modules = Modules(Assembling())
    assert modules.load(Scale(n=100)) is not modules.load(Scale(n=101))
    assert modules.counts.misses == 2


def test_compiled_code_is_found_on_disk() -> None:
    first, second = Assembling(), Assembling()
    Modules(first).load(Scale(n=100))
    modules = Modules(second)
    modules.load(Scale(n=100))
    assert (second.compiled, modules.counts.disk_hits, modules.counts.misses) == (0, 1, 0)
    assert second.images == first.images


def test_another_toolchain_compiles_again() -> None:
    Modules(Assembling("1")).load(Scale(n=100))
    modules = Modules(Assembling("2"))
    modules.load(Scale(n=100))
    assert (modules.counts.disk_hits, modules.counts.misses) == (0, 1)


@pytest.mark.parametrize("at", [0, 20, 50, 1000, -1])
def test_a_damaged_entry_is_built_again(own_cache: Path, at: int) -> None:
    first = Assembling()
    Modules(first).load(Scale(n=100))
    (path,) = own_cache.rglob("*.bin")
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    second = Assembling()
    modules = Modules(second)
    modules.load(Scale(n=100))
    assert (second.images, modules.counts.misses) == (first.images, 1)
    assert modules.disk is not None
    assert modules.disk.corrupt == 1
    third = Modules(Assembling())
    third.load(Scale(n=100))
    assert third.counts.disk_hits == 1


@pytest.mark.parametrize("variable", ["PTXGEN_CACHE_DIR", "PTXGEN_CACHE_LIMIT_MB"])
def test_without_a_disk_cache_nothing_is_written(monkeypatch: pytest.MonkeyPatch, own_cache: Path, variable: str) -> None:
    monkeypatch.setenv(variable, "0")
    modules = Modules(Assembling())
    modules.load(Scale(n=100))
    assert modules.counts.misses == 1
    assert not own_cache.exists()


def test_preload_reports_its_progress() -> None:
    steps: list[tuple[int, int]] = []
    modules = Modules(Assembling())
    modules.preload([Scale(n=100), Accumulate(n=100)], lambda done, total: steps.append((done, total)))
    assert steps == [(1, 2), (2, 2)]
    assert modules.counts.misses == 2
    assert str(modules.counts) == "2 compiled, 0 from disk, 0 from memory"


def test_preload_compiles_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)

    class Meeting(Assembling):
        def compile(self, text: str) -> bytes | None:
            both.wait()
            return super().compile(text)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    device = Meeting()
    modules = Modules(device)
    modules.preload([Scale(n=100), Scale(n=101), Scale(n=100)])
    assert (device.compiled, modules.counts.misses, modules.counts.emissions) == (2, 2, 2)
    again = Modules(Assembling())
    again.preload([Scale(n=101), Scale(n=100)])
    assert (again.counts.misses, again.counts.disk_hits) == (0, 2)


def test_what_preload_cannot_compile_is_told_as_load_tells_it() -> None:
    class Failing(Assembling):
        def compile(self, text: str) -> bytes | None:
            if "101" in text:
                raise DeviceError("no code for it")
            return super().compile(text)

    modules = Modules(Failing())
    with pytest.raises(DeviceError, match="no code for it"):
        modules.preload([Scale(n=100), Scale(n=101), Scale(n=102)])
    assert modules.loaded == 1
    modules.load(Scale(n=102))


LOADER = """
from executor.launch.modules import Modules
from tests.executor.launch.kernels import Scale
from tests.executor.launch.test_modules import Assembling
modules = Modules(Assembling())
for n in range(90, 110):
    modules.load(Scale(n=n))
assert modules.disk.corrupt == 0
print(modules.counts.misses + modules.counts.disk_hits)
"""


@pytest.mark.slow
def test_two_processes_may_fill_one_cache_at_once(own_cache: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", LOADER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=240)[0] for process in processes] == ["20\n", "20\n"]
    modules = Modules(Assembling())
    modules.preload([Scale(n=n) for n in range(90, 110)])
    assert modules.counts.disk_hits == 20
    assert not list(own_cache.rglob("*.tmp"))


def test_code_that_the_gpu_refuses_is_built_again_once_and_reported(
    own_cache: Path, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole and under the right name, so no checksum sees it: what another GPU's toolchain or a broken one left there."""
    with CudaDevice() as device:
        modules = Modules(device)
        kernel = modules.load(Scale(n=100))
        assert modules.disk is not None
        (path,) = own_cache.rglob("*.bin")
        text = emit(Scale(n=100), device.target).text
        modules.disk.put(f"{device.build}\0{hashlib.sha256(text.encode()).hexdigest()}", b"foreign")
        assert path.read_bytes().endswith(b"foreign")
        driver.refused.add(b"foreign")
        again = Modules(device)
        assert again.load(Scale(n=100)).entry == kernel.entry
        assert (again.counts.misses, again.counts.disk_hits) == (1, 0)
        assert driver.modules[-1] == driver.modules[0]
        assert "code of test_scale on disk is refused and will be made again: loading test_scale" in caplog.text
        third = Modules(device)
        third.load(Scale(n=100))
        assert third.counts.disk_hits == 1


def test_code_on_disk_without_the_entry_is_built_again_and_does_not_stay_loaded(own_cache: Path, driver: FakeDriver) -> None:
    with CudaDevice() as device:
        Modules(device).load(Scale(n=100))
        answers = iter([(R.CUDA_ERROR_NOT_FOUND, None)])
        found = driver.cuModuleGetFunction
        driver.cuModuleGetFunction = lambda *call: next(answers, None) or found(*call)  # type: ignore[method-assign]
        modules = Modules(device)
        modules.load(Scale(n=100))
        assert modules.counts.misses == 1
        assert driver.live["module"] == 2


def test_code_that_is_refused_when_it_has_just_been_compiled_is_an_error(driver: FakeDriver) -> None:
    driver.failing["cuModuleLoadData"] = R.CUDA_ERROR_INVALID_IMAGE
    with CudaDevice() as device, pytest.raises(DeviceError, match="loading test_scale on cuda:0"):
        Modules(device).load(Scale(n=100))


def test_code_of_the_emulator_under_another_kernels_name_is_built_again(own_cache: Path) -> None:
    with EmulatedDevice() as device:
        modules = Modules(device)
        modules.preload([Scale(n=100), Scale(n=101)])
        first, second = sorted(own_cache.rglob("*.o"))
        code = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(code)
        again = Modules(device)
        again.preload([Scale(n=100), Scale(n=101)])
        assert (again.counts.misses, again.counts.disk_hits) == (2, 0)


def test_closing_unloads_every_kernel_and_loading_works_afterwards(driver: FakeDriver) -> None:
    with CudaDevice() as device:
        modules = Modules(device)
        modules.preload([Scale(n=100), Scale(n=101), Scale(n=100)])
        assert driver.live["module"] == 2
        modules.close()
        assert driver.live["module"] == 0
        modules.load(Scale(n=100))
        assert driver.live["module"] == 1
