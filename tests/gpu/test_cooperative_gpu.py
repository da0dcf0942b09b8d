"""Kernels whose blocks wait for each other, alone, in a graph and started dependent: on the emulator and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from executor.base.errors import LaunchError
from executor.device import Device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Plan
from executor.memory.buffers import GpuBuffer
from ptxgen.types import F32, U32
from tests.executor.launch.kernels import Scale, TurnedTogether, together_plan
from tests.gpu.launching import launcher_on

BOTH = ["emulator", pytest.param("cuda:0", marks=pytest.mark.gpu)]


def blocks_of(device: Device) -> int:
    """As many as there are at once on a GPU, and fewer where each takes its turn."""
    loaded = launcher_on(device).modules.load(TurnedTogether(n=64))
    return min(device.most_blocks(loaded, (64, 1, 1)), 4096 if device.kind == "cuda" else 40)


def plans_on(device: Device, n: int, *, dependent: bool) -> tuple[list[Plan], GpuBuffer]:
    """x = w * 2 + 1, and y = x backwards; and y."""
    launcher = launcher_on(device)
    w = GpuBuffer.from_numpy(device, np.arange(n, dtype=np.float32))
    x, y, staged = (GpuBuffer.empty(device, F32, (n,), name) for name in ("x", "y", "staged"))
    words = GpuBuffer.zeros(device, U32, (2,), "words")
    prepare = launcher.prepare_dependent if dependent else launcher.prepare
    plans = [
        launcher.prepare(Scale(n=n), y=x, x=w, factor=2.0, offset=1),
        prepare(TurnedTogether(n=n), y=y, x=x, staged=staged, words=words),
    ]
    return plans, y


@pytest.mark.parametrize("device", BOTH, indirect=True)
@pytest.mark.parametrize("how", ["one by one", "in a graph", "early in a graph"])
def test_every_block_sees_what_the_others_wrote_launch_after_launch(device: Device, how: str) -> None:
    if how.startswith("dependent") and device.target.sm < 90:
        pytest.skip("programmatic dependent launch needs sm_90")
    n = 64 * blocks_of(device)
    plans, y = plans_on(device, n, dependent=how.startswith("dependent"))
    graph = LaunchGraph(device, plans)
    for _ in range(20 if device.kind == "cuda" else 2):
        device.fill(y.pointer, y.nbytes)
        if how == "one by one":
            for plan in plans:
                plan()
        else:
            graph.replay()
        np.testing.assert_array_equal(y.to_numpy(), (np.arange(n, dtype=np.float32) * 2 + 1)[::-1])


@pytest.mark.parametrize("device", BOTH, indirect=True)
def test_a_grid_that_the_device_does_not_hold_at_once_is_refused(device: Device) -> None:
    loaded = launcher_on(device).modules.load(TurnedTogether(n=64))
    most = device.most_blocks(loaded, (64, 1, 1))
    with pytest.raises(LaunchError, match=rf"the {most + 1} blocks of grid .* wait for each other, and .* holds {most} "):
        together_plan(device, most + 1)
