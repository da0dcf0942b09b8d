"""What a capture takes and what it refuses: every launch is recorded, by whatever name; nothing else happens in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from executor import CudaExecutor, GpuBuffer
from executor.base.errors import LaunchError
from executor.device import Device
from executor.launch.launch import Launcher
from executor.model.sampling import Sampler
from tests.executor.launch.kernels import Accumulate, Scale
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

ONES = np.ones(100, np.float32)


def test_ones_own_kernel_is_recorded(executor: CudaExecutor) -> None:
    total, x = executor.zeros(100), executor.buffer(ONES)
    with executor.capture() as graph:
        executor.launcher(Accumulate(n=100), total=total, x=x)
    assert total.to_numpy()[0] == 0
    graph.replay()
    graph.replay()
    assert total.to_numpy().tolist() == [2] * 100


def test_a_plan_prepared_before_is_recorded_with_the_scalars_of_each_call(executor: CudaExecutor) -> None:
    x, y, total = executor.buffer(ONES), executor.zeros(100), executor.zeros(100)
    scale = executor.launcher.prepare(Scale(n=100), y=y, x=x, factor=1.0, offset=0)
    add = executor.launcher.prepare(Accumulate(n=100), total=total, x=y)
    with executor.capture() as graph:
        for offset in (1, 10, 100):
            scale(offset=offset)
            add()
    assert total.to_numpy()[0] == 0
    graph.replay()
    assert total.to_numpy().tolist() == [114] * 100
    assert [record.arguments.get("offset") for record in graph.records] == [1, None, 10, None, 100, None]


def test_what_blocks_leave_for_the_last_of_them_is_made_in_a_capture_and_is_there_for_each_replay(
    executor: CudaExecutor,
) -> None:
    rng = np.random.default_rng(3)
    x = executor.zeros(2, 9001)
    with executor.capture() as graph:  # the first that needs counters, which must be zeros
        found = executor.argmax(x)
    for _ in range(3):
        values = rng.standard_normal((2, 9001)).astype(np.float32)
        x.upload(values)
        graph.replay()
        assert found.to_numpy().tolist() == values.argmax(axis=1).tolist()
    assert executor.argmax(x.view(0, (9001,))).to_numpy().tolist() == [values[0].argmax()]
    with pytest.raises(LaunchError, match="filling memory"), executor.capture():
        x.fill(0)


REFUSED: dict[str, Callable[[CudaExecutor, GpuBuffer], object]] = {
    "upload": lambda e, x: x.upload(2 * ONES),
    "fill": lambda e, x: x.fill(7),
    "to_numpy": lambda e, x: x.to_numpy(),
    "buffer": lambda e, x: e.buffer(ONES),
    "zeros": lambda e, x: e.zeros(3),
    "copy": lambda e, x: e.device.copy(x.pointer, x.pointer + 200, 200),
    "load_weight": lambda e, x: e.load_weight("w", ONES, "F32", (100,)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_graph_cannot_hold_is_refused_and_does_not_happen(what: str, executor: CudaExecutor) -> None:
    x = executor.buffer(ONES)
    with pytest.raises(LaunchError, match=r"on emulator .* happens at once, which cannot be captured"), executor.capture():
        REFUSED[what](executor, x)
    np.testing.assert_array_equal(x.to_numpy(), ONES)
    x.upload(3 * ONES)  # the capture has ended


def test_launches_of_another_launcher_and_of_another_graph_are_refused(executor: CudaExecutor) -> None:
    total, x = executor.zeros(100), executor.buffer(ONES)
    with executor.capture() as graph:
        executor.launcher(Accumulate(n=100), total=total, x=x)
    other = Launcher(executor.device, executor.modules)
    with pytest.raises(LaunchError, match="which cannot be captured"), executor.capture():
        graph.replay()
    with pytest.raises(LaunchError, match="which cannot be captured"), executor.capture():
        other(Accumulate(n=100), total=total, x=x)
    assert total.to_numpy()[0] == 0


def test_a_model_does_not_decode_in_a_capture(executor: CudaExecutor, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1, hidden=256, heads=4, ff=256, context=16)
    with executor.load_model(path) as model:
        expected = model.generate([1, 2], max_tokens=3, sampler=Sampler()).tokens
        with pytest.raises(LaunchError, match="which cannot be captured"), executor.capture():
            model.generate([1, 2], max_tokens=3, sampler=Sampler())
        assert model.generate([1, 2], max_tokens=3, sampler=Sampler()).tokens == expected


def test_what_a_capture_uses_lives_as_long_as_its_graph(executor: CudaExecutor) -> None:
    total = executor.zeros(100)
    x = executor.buffer(ONES)
    with executor.capture() as graph:
        executor.launcher(Accumulate(n=100), total=total, x=x)
    taken = executor.device.memory().allocated
    del x
    assert executor.device.memory().allocated == taken
    junk = executor.buffer(9 * ONES)  # would lie where x lay
    graph.replay()
    assert total.to_numpy().tolist() == [1] * 100
    assert junk.alive
    del graph
    assert executor.device.memory().allocated < taken + junk.nbytes


def test_a_call_that_is_refused_in_a_capture_leaves_nothing_in_it(executor: CudaExecutor) -> None:
    total, x, y = executor.zeros(100), executor.buffer(ONES), executor.zeros(7)
    with executor.capture() as graph:
        executor.launcher(Accumulate(n=100), total=total, x=x)
        with pytest.raises(LaunchError):
            executor.launcher(Accumulate(n=100), total=y, x=x)
    assert len(graph.records) == 1


def test_the_device_is_open_again_after_a_capture_that_failed(emulator: Device, executor: CudaExecutor) -> None:
    with pytest.raises(ZeroDivisionError), executor.capture():
        raise ZeroDivisionError
    assert executor.zeros(3).to_numpy().tolist() == [0, 0, 0]
    assert executor.launcher.recorded is None
