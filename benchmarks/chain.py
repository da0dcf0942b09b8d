"""A chain of launches as one CUDA graph, and its time. What is launched is the caller's business."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Self

from executor.device.cuda import CudaDevice, driver
from executor.errors import DeviceError
from executor.launch import Plan

WARM_UPS = 3
PROGRAMMATIC_PORT = 1
"""CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: the edge starts where the kernel lets its dependents start (CUDA driver API)."""


class Chain:
    """Launches captured from the device's stream, each after the one before; with `programmatic` a kernel may start when the
    one before lets it (griddepcontrol)."""

    def __init__(self, device: CudaDevice, plans: Sequence[Plan], *, programmatic: bool = False) -> None:
        self._cuda = cuda = driver()
        self._device = device
        self.length = len(plans)
        for plan in dict.fromkeys(plans):  # loads what is loaded lazily, and fails here if it fails
            plan()
        device.synchronize()
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked(cuda.cuStreamBeginCapture(device.stream, mode))
        try:
            for plan in plans:
                plan()
        finally:
            self._graph = _checked(cuda.cuStreamEndCapture(device.stream))
        if programmatic:
            self._let_start_early()
        self._instance = _checked(cuda.cuGraphInstantiate(self._graph, 0))

    def seconds(self, runs: int) -> list[float]:
        """Seconds of device time of one replay, by run, after a few that warm up."""
        times = []
        for run in range(WARM_UPS + runs):
            start = self._device.record()
            _checked(self._cuda.cuGraphLaunch(self._instance, self._device.stream))
            end = self._device.record()
            if run >= WARM_UPS:
                times.append(self._device.elapsed(start, end))
        return times

    def _let_start_early(self) -> None:
        cuda = self._cuda
        _, _, _, count = _checked(cuda.cuGraphGetEdges(self._graph, 0))
        sources, targets, _, _ = _checked(cuda.cuGraphGetEdges(self._graph, count))
        data = cuda.CUgraphEdgeData()
        data.from_port = PROGRAMMATIC_PORT
        data.type = cuda.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
        for source, target in zip(sources, targets, strict=True):
            _checked(cuda.cuGraphRemoveDependencies(self._graph, [source], [target], None, 1))
            _checked(cuda.cuGraphAddDependencies(self._graph, [source], [target], [data], 1))

    def close(self) -> None:
        _checked(self._cuda.cuGraphExecDestroy(self._instance))
        _checked(self._cuda.cuGraphDestroy(self._graph))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def microseconds(chain: Chain, runs: int) -> tuple[float, float, float]:
    """(median, least, most) of the time of one launch."""
    times = [seconds * 1e6 / chain.length for seconds in chain.seconds(runs)]
    return statistics.median(times), min(times), max(times)


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status:
        raise DeviceError(f"the CUDA graph failed: {driver().cuGetErrorName(status)[1].decode()}")
    return values[0] if len(values) == 1 else tuple(values)
