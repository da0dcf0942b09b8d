"""NCCL's gathers on GPUs: which calls come in which order, on which streams, and the end of all when one fails. Without GPUs:
driver and NCCL are fakes that keep a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from executor.base.errors import DeviceError, DeviceFailed
from executor.device import open_devices
from executor.device.nccl import BETWEEN_LOOKS
from executor.device.protocol import ReadOwn, copying
from executor.device.several import SeveralDevices
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.launch.nccl_all_gather import NcclAllGather
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.types import F32
from tests.executor.device.fake_driver import R
from tests.executor.device.fake_nccl import FakeNccl, installed
from tests.executor.launch.kernels import Scale

GROUP = ["group(", "gather0 16 on 1", "gather1 16 on 2", ")group"]


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    monkeypatch.setenv("PTXGEN_GATHERS", "nccl")
    return installed(monkeypatch)


@pytest.fixture
def two(nccl: FakeNccl) -> Iterator[SeveralDevices]:
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        assert isinstance(devices, SeveralDevices)
        nccl.log.clear()
        yield devices


def gather(devices: SeveralDevices) -> Plan:
    """Of four values of each."""
    x, y = GpuBuffer.empty(devices, F32, (4,)), GpuBuffer.zeros(devices, F32, (2, 4))
    own = [np.arange(4, dtype=np.float32) + 10 * rank for rank in range(2)]
    devices.upload_from(x.pointer, x.nbytes, ReadOwn(lambda rank: copying(own[rank])))
    return Launcher(devices, Modules(devices)).prepare(NcclAllGather(count=4, ranks=2), x=x, y=y)


def scale(devices: SeveralDevices, x: GpuBuffer) -> Plan:
    y = GpuBuffer.zeros(devices, F32, (1,))
    return Launcher(devices, Modules(devices)).prepare_dependent(Scale(n=1), y=y, x=x, factor=2.0, offset=1)


def test_a_gather_is_a_group_of_calls_on_the_gpus_own_streams(two: SeveralDevices, nccl: FakeNccl) -> None:
    plan = gather(two)
    nccl.log.clear()
    plan()
    assert nccl.log == GROUP
    y = plan.arguments["y"]
    for device, pointer in zip(two.devices, two.of_ranks(y.pointer), strict=True):
        found = np.empty(y.shape, np.float32)
        device.download(pointer, found)
        assert found.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_kernels_get_no_addresses_that_they_cannot_use(two: SeveralDevices) -> None:
    x = GpuBuffer.zeros(two, F32, (4,))
    with pytest.raises(DeviceError, match=r"cannot use each other's memory: they gather by NCCL \(asked for\)"):
        two.peers(x.pointer)


def test_a_graph_has_it_captured_on_all_at_once_and_in_its_place(two: SeveralDevices, nccl: FakeNccl) -> None:
    plan = gather(two)
    before = scale(two, plan.arguments["x"].view(0, (1,)))
    after = scale(two, plan.arguments["y"].view(0, (1,)))
    nccl.log.clear()
    graph = LaunchGraph(two, [before, plan, after])
    captured = ["capture 1", "capture 2", *GROUP, "captured 1", "captured 2"]
    assert nccl.log[: len(captured)] == captured
    nodes = [
        "kernel after 0",
        "gather on {} after 1",
        "kernel after 1",
    ]  # that one, too: only behind a kernel is a launch dependent
    assert nccl.log[len(captured) :] == [node.format(stream) for stream in (1, 2) for node in nodes]
    assert nccl.driver.live["graph"] == 2  # what was captured has gone
    nccl.log.clear()
    graph.replay()
    assert nccl.log == ["graph on 1", "graph on 2"]


def test_nobody_asks_a_stream_while_it_is_captured(two: SeveralDevices, nccl: FakeNccl) -> None:
    """The driver would end the capture; the fake one raises, which would be the end of the watch."""
    plan = gather(two)
    nccl.ending = lambda: time.sleep(4 * BETWEEN_LOOKS)
    LaunchGraph(two, [plan])
    time.sleep(2 * BETWEEN_LOOKS)
    assert two._nccl is not None
    assert two._nccl._watch.is_alive()


def test_nccl_goes_after_graphs_and_before_the_gpus(nccl: FakeNccl) -> None:
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        assert isinstance(devices, SeveralDevices)
        graph = LaunchGraph(devices, [gather(devices)])
        nccl.log.clear()
    assert nccl.log == ["group(", "finalize0", "finalize1", ")group", "destroy0", "destroy1"]  # which looks at graphs
    assert not any(nccl.driver.live.values())
    graph.close()


def test_a_call_that_nccl_refuses_is_the_end_and_names_the_rank(two: SeveralDevices, nccl: FakeNccl) -> None:
    plan = gather(two)
    nccl.failing["gather1"] = RuntimeError("InvalidArgument (4)")
    nccl.log.clear()
    with pytest.raises(DeviceFailed, match=r"gathering on rank 1 \(cuda:1 .*InvalidArgument \(4\)") as failed:
        plan()
    assert "all that was on them is lost" in str(failed.value)
    assert nccl.log[:4] == ["group(", "gather0 16 on 1", "gather1 16 on 2", ")group"]
    assert ended(nccl)
    with pytest.raises(DeviceFailed, match="have failed and refuse launching"):
        plan()


def test_a_capture_that_fails_is_ended_on_all_and_those_before_it_go(two: SeveralDevices, nccl: FakeNccl) -> None:
    first, second = gather(two), gather(two)
    ends = iter(["", "SystemError (2)"])
    nccl.ending = lambda: refuse(next(ends))
    with pytest.raises(DeviceFailed, match=r"capturing ncclAllGather failed .*in a group of gathers: SystemError \(2\)"):
        LaunchGraph(two, [first, second])
    assert not nccl.driver.capturing
    assert nccl.driver.live["graph"] == 0


def test_an_asynchronous_error_is_the_end_of_the_step_on_all(two: SeveralDevices, nccl: FakeNccl) -> None:
    graph = LaunchGraph(two, [plan := gather(two)])
    graph.replay()
    nccl.asynchronous[1] = 6
    with pytest.raises(DeviceFailed, match=r"rank 1 \(cuda:1 \(Fake GPU\)\): NCCL: error 6 \(last words of 1\)"):
        plan.arguments["y"].to_numpy()
    assert ended(nccl)
    with pytest.raises(DeviceFailed, match="have failed and refuse launching"):
        graph.replay()


def test_a_communicator_that_gives_no_answer_is_lost(
    two: SeveralDevices, nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("tests.executor.device.fake_nccl.FakeCommunicator.get_async_error", lambda _: refuse("unknown"))
    with pytest.raises(DeviceFailed, match=r"rank 0 \(cuda:0 \(Fake GPU\)\): NCCL: unknown; rank 1 "):
        two.synchronize()


@pytest.mark.parametrize("late", ["asynchronous", "fault", "start"])
def test_who_waits_for_a_gather_that_never_ends_is_woken(
    late: str, two: SeveralDevices, nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the wait, or the start, ends when the communicators are aborted."""
    plan = gather(two)

    def blocked(*_: object) -> tuple[object]:
        assert waited.wait(20), "nobody has aborted"
        return (R.CUDA_SUCCESS,)

    waited = threading.Event()
    monkeypatch.setattr("tests.executor.device.fake_nccl.FakeCommunicator.abort", lambda _: waited.set())
    if late == "start":
        monkeypatch.setattr("executor.device.nccl.LONGEST_START", 0.1)
        monkeypatch.setattr(nccl, "group_end", blocked)
        plan()
        with pytest.raises(DeviceFailed, match=r"not started on all GPUs within 0\.1 s"):
            plan.arguments["y"].to_numpy()
        return
    plan()
    monkeypatch.setattr(nccl.driver, "cuStreamSynchronize", blocked)
    if late == "asynchronous":
        nccl.asynchronous[0] = 1
    else:
        nccl.driver.faults[2] = R.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceFailed, match="rank 0 .*NCCL: error 1" if late == "asynchronous" else "rank 1 .*ILLEGAL_ADDRESS"):
        two.synchronize()


def test_an_interrupt_between_starts_aborts(two: SeveralDevices, nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = LaunchGraph(two, [gather(two)])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(two.devices[1], "launch_graph", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph.replay()
    assert ended(nccl)


def test_nccl_that_does_not_start_names_the_gpus(nccl: FakeNccl) -> None:
    nccl.failing["set"] = RuntimeError("UnhandledCudaError (1)")
    with pytest.raises(DeviceError, match=r"setting up cuda:0 .*, cuda:1 \(Fake GPU\): UnhandledCudaError \(1\)"):
        open_devices(["cuda:0", "cuda:1"])
    assert not any(nccl.driver.live.values())


def test_gpus_are_connected_before_anything_is_captured(nccl: FakeNccl) -> None:
    with open_devices(["cuda:0", "cuda:1"]) as devices:
        assert nccl.log == ["set up [0, 1]", "group(", "gather0 256 on 1", "gather1 256 on 2", ")group"]
        assert devices.memory().allocated == 0


def test_a_connection_that_never_comes_is_an_error(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    def blocked(*_: object) -> tuple[object]:
        assert ended(nccl)
        return (R.CUDA_SUCCESS,)

    monkeypatch.setattr("executor.device.nccl.LONGEST_START", 0.1)
    monkeypatch.setattr(nccl.driver, "cuStreamSynchronize", blocked)
    with pytest.raises(DeviceError, match=r"while setting up: a gather was not started on all GPUs within 0\.1 s"):
        open_devices(["cuda:0", "cuda:1"])
    assert not any(nccl.driver.live.values())


def test_what_nccl_launches_leaves_no_stamps(two: SeveralDevices) -> None:
    plan = gather(two)
    assert not Modules(two).stamps
    with pytest.raises(ArgumentError, match="has no form with stamps"):
        LaunchGraph(two, [plan], stamped=True)


def test_nothing_is_started_after_the_watch_has_aborted(two: SeveralDevices, nccl: FakeNccl) -> None:
    graph = LaunchGraph(two, [gather(two)])
    nccl.asynchronous[0] = 3
    assert ended(nccl)
    nccl.log.clear()
    with pytest.raises(DeviceFailed, match=r"rank 0 .*NCCL: error 3"):
        graph.replay()
    assert nccl.log == []


def refuse(text: str) -> None:
    if text:
        raise RuntimeError(text)


def ended(nccl: FakeNccl) -> bool:
    """Whether all ranks are aborted, which threads do."""
    end = time.monotonic() + 10
    while nccl.aborted != {0, 1} and time.monotonic() < end:
        time.sleep(0.01)
    return nccl.aborted == {0, 1}
