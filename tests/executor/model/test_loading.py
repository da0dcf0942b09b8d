"""A model is on a device whole or not at all: out of memory, Ctrl-C and `close` leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import DeviceFailed, ModelError, OutOfMemory
from executor.device.cuda import CudaDevice
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import ReadInto
from executor.launch.modules import Modules
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from tests.executor.device.fake_driver import FakeDriver
from tests.synthetic import Q, write_model

PROMPT = (1, 500, 7, 42)


class Small(EmulatedDevice):
    """An emulator whose memory is not the host's, and has room for `room` more allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 30

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int | None:
        return None

    def alloc(self, nbytes: int, name: str = "") -> int:
        if self.room == 0:
            raise OutOfMemory(f"no room for {nbytes} bytes ({name})", nbytes, 0)
        self.room -= 1
        return super().alloc(nbytes, name)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_model(path, types=Q.Q8_0, layers=1, hidden=256, heads=4, ff=256, context=32)


@pytest.fixture
def device() -> Iterator[Small]:
    with Small() as device:
        yield device


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Small, Modules]]:
    """One device whose kernels all tests use."""
    with Small() as device:
        yield device, Modules(device)


def answer(model: LanguageModel) -> list[int]:
    return model.generate(PROMPT, max_tokens=6, sampler=Sampler()).tokens


@pytest.mark.slow
def test_memory_that_ends_at_any_allocation_leaves_nothing(path: Path, shared: tuple[Small, Modules]) -> None:
    device, modules = shared
    with LanguageModel.load(path, device, modules=modules) as model:
        allocations = (1 << 30) - device.room
        expected = answer(model)
    assert allocations > 5
    for room in range(allocations):
        device.room = room
        with pytest.raises(OutOfMemory, match="KV cache"):
            LanguageModel.load(path, device, modules=modules)
        assert device.memory().allocated == 0
    device.room = 1 << 30
    with LanguageModel.load(path, device, modules=modules) as model:
        assert answer(model) == expected


def test_out_of_memory_says_what_needs_how_much(path: Path, shared: tuple[Small, Modules]) -> None:
    device, modules = shared
    with LanguageModel.load(path, device, modules=modules, context=17) as model:
        allocated = device.memory().allocated
        weights, cache = model.decoder.weights.nbytes, model.decoder.cache.nbytes
    device.room = 2
    with pytest.raises(OutOfMemory) as caught:
        LanguageModel.load(path, device, modules=modules, context=17)
    device.room = 1 << 30
    message = str(caught.value)
    assert f"weights {weights}, KV cache {cache} for a context of 17 tokens, activations " in message
    assert "bytes were free" in message
    activations = int(message.split("activations ")[1].split(";")[0])
    assert caught.value.requested == weights + cache + activations
    assert 0 <= allocated - caught.value.requested < 256 * 64  # alignment of the pool alone


@pytest.mark.parametrize("stage", ["weights", "kernels"])
@pytest.mark.parametrize("part", ["first", "last"])
def test_an_interrupted_load_leaves_nothing_and_can_be_repeated(
    path: Path, shared: tuple[Small, Modules], stage: str, part: str
) -> None:
    device, modules = shared

    def interrupt(now: str, done: int, total: int) -> None:
        if now == stage and (part == "first" or done == total):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LanguageModel.load(path, device, modules=modules, progress=interrupt)
    assert device.memory().allocated == 0
    with LanguageModel.load(path, device, modules=modules) as model:
        assert len(answer(model)) == 6
    assert device.memory().allocated == 0


def test_an_interrupted_generation_leaves_a_model_that_answers_as_ever(path: Path, shared: tuple[Small, Modules]) -> None:
    device, modules = shared
    with LanguageModel.load(path, device, modules=modules) as model:
        expected = answer(model)
        for tokens in (1, 3):
            seen: list[int] = []

            def interrupt(token: int, seen: list[int] = seen, tokens: int = tokens) -> None:
                seen.append(token)
                if len(seen) == tokens:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                model.generate(PROMPT[::-1], max_tokens=6, sampler=Sampler(), on_token=interrupt)
            assert answer(model) == expected


def test_an_interrupt_inside_a_step_leaves_a_model_that_answers_as_ever(
    path: Path, shared: tuple[Small, Modules], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, modules = shared
    with LanguageModel.load(path, device, modules=modules) as model:
        expected, logits = answer(model), model.logits(PROMPT)
        run = EmulatedDevice._run
        for launches in (0, 1, 7, 30):
            left = [launches]

            def interrupted(self: EmulatedDevice, *arguments: Any, left: list[int] = left) -> None:
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                run(self, *arguments)

            with monkeypatch.context() as patch:
                patch.setattr(EmulatedDevice, "_run", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    model.generate(PROMPT[::-1], max_tokens=6, sampler=Sampler())
            assert answer(model) == expected
            assert np.array_equal(model.logits(PROMPT), logits)


def test_a_closed_model_gives_its_memory_back_and_says_that_it_is_closed(path: Path, device: Small) -> None:
    model = LanguageModel.load(path, device)
    model.close()
    model.close()
    assert device.memory().allocated == 0
    with pytest.raises(ModelError, match="the model is closed"):
        answer(model)


def test_a_model_may_be_closed_after_its_device(path: Path) -> None:
    with Small() as device:
        model = LanguageModel.load(path, device)
    model.close()


def test_a_gpu_whose_memory_ends_anywhere_during_a_load_keeps_nothing(path: Path, driver: FakeDriver) -> None:
    with CudaDevice() as device:
        modules = Modules(device)
        before = driver.free_bytes
        with LanguageModel.load(path, device, modules=modules):
            needed = before - driver.free_bytes
            live = driver.live.copy()
        assert driver.free_bytes == before
        for room in (0, needed // 3, needed - 1):
            driver.free_bytes = room
            with pytest.raises(OutOfMemory, match=rf"{room} bytes were free .*no room for \d+ bytes \("):
                LanguageModel.load(path, device, modules=modules)
            assert (driver.free_bytes, device.memory().allocated, driver.live["memory"]) == (room, 0, 0)
        driver.free_bytes = before
        with LanguageModel.load(path, device, modules=modules):
            assert driver.live == live


def test_a_load_that_fails_unloads_the_kernels_that_only_it_used(path: Path, driver: FakeDriver) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "kernels" and done == total:
            raise KeyboardInterrupt

    with CudaDevice() as device:
        with pytest.raises(KeyboardInterrupt):
            LanguageModel.load(path, device, progress=interrupt)
        assert driver.live["module"] == 0
        LanguageModel.load(path, device).close()
        assert driver.live["module"] == 0


def test_a_gpu_that_fails_during_a_load_tells_its_fault_and_not_that_of_the_cleaning(path: Path, driver: FakeDriver) -> None:
    def fail(stage: str, done: int, total: int) -> None:
        if stage == "kernels":
            driver.fault()

    with CudaDevice() as device:
        with pytest.raises(DeviceFailed, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            LanguageModel.load(path, device, progress=fail)
        assert device.failed
    with CudaDevice() as again, LanguageModel.load(path, again):
        assert again.memory().allocated > 0


def test_a_model_on_a_gpu_that_failed_can_be_closed(path: Path, driver: FakeDriver) -> None:
    with CudaDevice() as device, LanguageModel.load(path, device):
        driver.fault()
        with pytest.raises(DeviceFailed):
            device.synchronize()
    assert not any(driver.live.values())
