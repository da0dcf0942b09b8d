"""Models come and go, on one thread and on two, and nothing stays and nothing mixes. On a GPU: tests/gpu/test_faults_gpu.py."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from executor import CudaExecutor
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.types import F32
from tests.executor.device.fake_driver import FakeDriver
from tests.executor.launch.kernels import Accumulate, Scale
from tests.synthetic import Q, write_model

PROMPT = (1, 500, 7, 42)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one shape, which have all kernels in common."""
    folder = tmp_path_factory.mktemp("models")
    return [
        write_model(folder / f"{seed}.gguf", types=Q.Q8_0, layers=1, hidden=256, heads=4, ff=256, context=32, seed=seed)
        for seed in (1, 2)
    ]


def answer(model: LanguageModel) -> list[int]:
    return model.generate(PROMPT, max_tokens=20, sampler=Sampler()).tokens


def at_once(*work: Callable[[], None]) -> None:
    """Run each on a thread of its own; raise what the first that failed raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(work))

    def guarded(one: Callable[[], None]) -> None:
        try:
            start.wait(timeout=240)
            one()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_two_executors_on_two_threads_answer_as_one_alone(paths: list[Path]) -> None:
    expected = []
    for path in paths:
        with CudaExecutor("emulator") as executor, executor.load_model(path) as model:
            expected.append(answer(model))
    assert expected[0] != expected[1]

    def work(order: tuple[int, int]) -> None:
        with CudaExecutor("emulator") as executor:
            for which in order:
                with executor.load_model(paths[which]) as model:
                    for _ in range(3):
                        assert answer(model) == expected[which]

    at_once(lambda: work((0, 1)), lambda: work((1, 0)))


def test_two_threads_may_write_compile_and_keep_the_same_kernels_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path))
    kernels = [kind(n=n) for n in range(100, 104) for kind in (Scale, Accumulate)]
    x = np.arange(110, dtype=np.float32)

    def work() -> None:
        with EmulatedDevice() as device:
            launcher = Launcher(device, Modules(device))
            for kernel in kernels:
                n = kernel.n
                y, given = GpuBuffer.zeros(device, F32, (n,)), GpuBuffer.from_numpy(device, x[:n])
                if isinstance(kernel, Accumulate):
                    launcher(kernel, total=y, x=given)
                    assert np.array_equal(y.to_numpy(), x[:n])
                else:
                    launcher(kernel, y=y, x=given, factor=2.0, offset=3)
                    assert np.array_equal(y.to_numpy(), x[:n] * 2 + 3)

    at_once(work, work)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_loading_again_and_again_leaves_no_memory_and_no_objects(paths: list[Path]) -> None:
    with EmulatedDevice(workers=1) as device:  # a thread of the emulator's pool keeps scratch memory when it first gets work
        modules = Modules(device)

        def cycle() -> int:
            with LanguageModel.load(paths[0], device, modules=modules) as model:
                answer(model)
                return device.memory().allocated

        for _ in range(3):
            taken = cycle()
        gc.collect()
        objects, memory, kernels = len(gc.get_objects()), resident(), modules.loaded
        cycles = 12
        for _ in range(cycles):
            cycle()
        gc.collect()
        assert device.memory().allocated == 0
        assert modules.loaded == kernels
        assert len(gc.get_objects()) - objects < cycles  # less than one object a cycle
        # A cycle that kept what it allocated would show whole; the allocator may keep a cycle's worth for the next.
        assert resident() - memory < cycles * taken / 2


def test_a_model_with_kernels_of_its_own_takes_them_with_it(paths: list[Path], driver: FakeDriver) -> None:
    with CudaDevice() as device:
        LanguageModel.load(paths[0], device).close()
        live, free = driver.live.copy(), driver.free_bytes
        for _ in range(3):
            LanguageModel.load(paths[0], device).close()
        assert (driver.live, driver.free_bytes) == (live, free)
        assert not driver.live["module"]
        assert not driver.live["memory"]
    assert not any(driver.live.values())


def test_models_on_one_executor_share_the_kernels(paths: list[Path], driver: FakeDriver) -> None:
    with CudaExecutor("cuda:0") as executor:
        executor.load_model(paths[0]).close()
        modules = driver.live["module"]
        for path in reversed(paths):
            executor.load_model(path).close()
        assert driver.live["module"] == modules
        assert executor.device.memory().allocated == 0
