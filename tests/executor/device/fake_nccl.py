"""NCCL and a driver that say, in one list, what was asked of them in which order; memory is the host's. No test."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from cuda.bindings import driver as real

from executor.device.nccl import UINT8
from tests.executor.device.fake_driver import OK, FakeDriver, R


class NcclDriver(FakeDriver):
    """Of two GPUs. Streams are numbers, and `log` has captures and what is added to graphs."""

    CUstreamCaptureMode = real.CUstreamCaptureMode

    def __init__(self, log: list[str]) -> None:
        super().__init__(gpus=2)
        self.log = log
        self.contexts_of: dict[int, Any] = {}
        self.capturing: set[int] = set()
        self.faults: dict[int, Any] = {}
        """By stream: what it answers to who asks how far it is."""

    def cuStreamCreate(self, flags: int) -> tuple[Any, Any]:
        super().cuStreamCreate(flags)
        stream = len(self.contexts_of) + 1
        self.contexts_of[stream] = self.current
        return OK, stream

    def cuStreamGetCtx(self, stream: int) -> tuple[Any, Any]:
        return OK, self.contexts_of[stream]

    def cuStreamQuery(self, stream: int) -> tuple[Any]:
        assert stream not in self.capturing
        return (self.faults.get(stream, R.CUDA_ERROR_NOT_READY),)

    def cuStreamBeginCapture(self, stream: int, mode: Any) -> tuple[Any]:
        assert self.contexts_of[stream] == self.current
        self.capturing.add(stream)
        self.log.append(f"capture {stream}")
        return (OK,)

    def cuStreamEndCapture(self, stream: int) -> tuple[Any, Any]:
        self.capturing.remove(stream)
        self.log.append(f"captured {stream}")
        self.live["graph"] += 1
        return OK, f"gather on {stream}"

    def cuGraphAddKernelNode(self, graph: Any, before: list[Any], count: int, parameters: Any) -> tuple[Any, Any]:
        self.log.append(f"kernel after {len(before)}")
        return super().cuGraphAddKernelNode(graph, before, count, parameters)

    def cuGraphAddChildGraphNode(self, graph: Any, before: list[Any], count: int, child: Any) -> tuple[Any, Any]:
        self.log.append(f"{child} after {len(before)}")
        return OK, child

    def cuGraphLaunch(self, instance: Any, stream: Any) -> tuple[Any]:
        self.log.append(f"graph on {stream}")
        return (OK,)


class FakeNccl:
    """`nccl.core`. failing: a call, and the error that it raises; ending: what the end of a group does besides; asynchronous:
    the codes that ranks answer with."""

    def __init__(self, log: list[str], driver: NcclDriver) -> None:
        self.log, self.driver = log, driver
        self.failing: dict[str, Exception] = {}
        self.asynchronous: dict[int, int] = {}
        self.aborted: set[int] = set()
        self.ending: Callable[[], None] = lambda: None
        self.waiting: list[tuple[int, int, int, int, int]] = []
        """Of each call in the group: rank, where its slice is, where all go, bytes of a slice, stream."""
        self.Comm = int
        self.Communicator = type("Communicator", (), {"init_all": self.init_all})

    def init_all(self, devices: list[int]) -> list[FakeCommunicator]:
        self.note(f"set up {devices}")
        return [FakeCommunicator(self, rank) for rank in range(len(devices))]

    def note(self, call: str) -> None:
        self.log.append(call)
        if call.split()[0] in self.failing:
            raise self.failing[call.split()[0]]

    def group_start(self) -> None:
        self.note("group(")

    def group_end(self) -> None:
        """What was gathered outside of a capture is so now."""
        calls, self.waiting = self.waiting, []
        self.note(")group")
        self.ending()
        for _, _, whole, _, _ in calls:
            for rank, x, _, nbytes, stream in calls:
                if stream not in self.driver.capturing:
                    ctypes.memmove(whole + rank * nbytes, x, nbytes)

    def all_gather(self, x: int, whole: int, nbytes: int, datatype: int, rank: int, stream: int) -> None:
        assert datatype == UINT8
        self.note(f"gather{rank} {nbytes} on {stream}")
        self.waiting.append((rank, x, whole, nbytes, stream))

    def get_error_string(self, result: int) -> str:
        return f"error {result}"

    def get_version(self) -> Any:
        return type("Versions", (), {"libnccl": "2.0"})


class FakeCommunicator:
    def __init__(self, nccl: FakeNccl, rank: int) -> None:
        self.nccl, self.rank = nccl, rank
        self.ptr = rank

    def get_async_error(self) -> int:
        assert self.rank not in self.nccl.aborted
        return self.nccl.asynchronous.get(self.rank, 0)

    def get_last_error(self) -> str:
        return f"last words of {self.rank}"

    def finalize(self) -> None:
        self.nccl.note(f"finalize{self.rank}")

    def destroy(self) -> None:
        assert self.nccl.driver.live["graph"] == 0, "NCCL waits for graphs that hold gathers"
        self.nccl.note(f"destroy{self.rank}")

    def abort(self) -> None:
        self.nccl.aborted.add(self.rank)
        self.nccl.note(f"abort{self.rank}")


def installed(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    """In the place of CUDA and NCCL, for this test."""
    log: list[str] = []
    driver = NcclDriver(log)
    nccl = FakeNccl(log, driver)
    for module in ("cuda", "nccl"):
        monkeypatch.setattr(f"executor.device.{module}.driver", lambda: driver)
    monkeypatch.setattr("executor.device.nccl.core", lambda: (nccl, nccl))
    monkeypatch.setattr("executor.device.gather_choice.installed", lambda: True)
    return nccl
