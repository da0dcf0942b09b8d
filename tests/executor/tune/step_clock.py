"""Time on the emulator as a test wants it: what a launch takes alone and what in a step. No test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from executor.device.emulated import EmulatedDevice
from executor.launch.graph import LaunchGraph
from ptxgen.dsl.kernel_type import KernelType

Cost = Callable[[KernelType, bool], float]
"""Microseconds of one launch of a kernel, alone (in a chain of nothing else) or in a step."""


def set_clock(monkeypatch: pytest.MonkeyPatch, cost: Cost, noise: float = 0.0) -> None:
    """Graphs of the emulator run, and take as long as `cost` says; each replay is off by up to a share `noise` of it."""
    rng = np.random.default_rng(1)
    now = [0.0]
    launch = EmulatedDevice.launch_graph

    def launch_graph(self: EmulatedDevice, graph: Any, work: object | None = None) -> None:
        launch(self, graph, work)
        assert isinstance(work, LaunchGraph)
        kernels = [record.kernel for record in work.records]
        alone = len(set(kernels)) == 1
        now[0] += sum(cost(kernel, alone) for kernel in kernels) * 1e-6 * (1 + noise * rng.uniform(-1, 1))

    monkeypatch.setattr(EmulatedDevice, "launch_graph", launch_graph)
    monkeypatch.setattr(EmulatedDevice, "record", lambda self: now[0])
