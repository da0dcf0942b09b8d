"""Which executor an operator runs on, and on which stream, against a played driver. (The real thing:
tests/gpu/test_torch_gpu.py.)"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from executor.api.executor import CudaExecutor
from ptxgen.errors import ArgumentError
from tests.executor.device.sharing_driver import OURS, THEIRS, SharingDriver

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

from executor.torch.executors import executor_of  # noqa: E402


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """PyTorch as it is with CUDA: one stream; the devices that were made the current one."""
    entered: list[int] = []

    @contextmanager
    def device(index: int) -> Iterator[None]:
        entered.append(index)
        yield

    fake = SharingDriver()
    monkeypatch.setattr("executor.device.cuda.driver", lambda: fake)
    monkeypatch.setattr("executor.torch.executors._opened", SimpleNamespace())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=THEIRS))
    return entered


def test_work_goes_to_pytorchs_current_stream_of_the_tensors_gpu(entered: list[int]) -> None:
    with executor_of(torch.device("cuda")) as executor:
        assert (executor.device.name, executor.stream) == ("cuda:0 (Fake GPU)", THEIRS)
    assert executor.stream == OURS
    with executor_of(torch.device("cuda:1")) as other:
        assert (other.device.name, other.stream) == ("cuda:1 (Fake GPU)", THEIRS)
    with executor_of(torch.device("cuda:0")) as again:
        assert again is executor
    assert entered == [0, 1, 0]
    for opened in (executor, other):
        opened.close()


def test_a_thread_has_its_own() -> None:
    made: list[CudaExecutor] = []

    def ask() -> None:
        for _ in range(2):
            with executor_of(torch.device("cpu")) as executor:
                made.append(executor)

    ask()
    thread = Thread(target=ask)
    thread.start()
    thread.join()
    assert made[0] is made[1]
    assert made[2] is made[3]
    assert made[0] is not made[2]


def test_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mps", "meta", "cuda:0"):  # the last of a PyTorch for AMD
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(ArgumentError, match=f"the tensors are on {name}; allowed: cpu"), executor_of(torch.device(name)):
            pytest.fail("the block was entered")
