"""A graph whose launches leave the times at which they ran."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from executor.base.errors import LaunchError
from executor.device import Device, open_device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.stamps import STAMPS
from ptxgen.errors import ArgumentError
from ptxgen.types import F32
from tests.executor.launch.kernels import Scale
from tests.ptxgen.toolchain.test_cuda_source import Reversed

pytestmark = pytest.mark.usefixtures("shared_kernels")


@dataclass(frozen=True)
class Together(Scale):
    """Scale, by blocks that are there all at once."""

    name = "test_together"

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=2, block=64, cooperative=True)


def chain(device: Device, *, dependent: bool = False) -> tuple[list[Plan], GpuBuffer]:
    """Three launches, each of which needs the one before, and what they compute: 8 x + 7."""
    launcher = Launcher(device, Modules(device))
    buffers = [GpuBuffer.from_numpy(device, np.full(100, number, np.float32), name=f"x{number}") for number in range(4)]
    prepare = launcher.prepare_dependent if dependent else launcher.prepare
    plans = [prepare(Scale(n=100), y=y, x=x, factor=2.0, offset=1) for x, y in pairwise(buffers)]
    return plans, buffers[-1]


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("sanitize", [False, True])
def test_launches_one_after_the_other_have_their_moments_in_order_and_anew_in_each_replay(
    dependent: bool, sanitize: bool
) -> None:
    with open_device("emulator", sanitize=sanitize) as device:
        plans, result = chain(device, dependent=dependent)
        graph = LaunchGraph(device, plans, stamped=True)
        ends = [0]
        for _ in range(2):
            graph.replay()
            moments = graph.moments()
            for one in moments:
                assert ends[-1] <= one.start <= one.began < one.end
                assert (one.began > one.start) is dependent
                ends.append(one.end)
        assert len(ends) == 7
        assert result.to_numpy()[0] == 7.0


def test_stamps_that_nobody_resets_are_seen_as_a_start_before_the_end_of_the_last_replay(
    emulator: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other test would say: the kernels only ever lower a start."""
    graph = LaunchGraph(emulator, chain(emulator)[0], stamped=True)
    graph.replay()
    first = graph.moments()
    monkeypatch.setattr(GpuBuffer, "fill", lambda self, byte: None)
    graph.replay()
    assert [one.start for one in graph.moments()] == [one.start for one in first]
    assert graph.moments()[0].end > first[-1].end


def test_a_graph_without_stamps_and_one_that_never_ran_have_no_moments(emulator: Device) -> None:
    plans, _ = chain(emulator)
    plain, stamped = LaunchGraph(emulator, plans), LaunchGraph(emulator, plans, stamped=True)
    plain.replay()
    assert (plain.stamped, stamped.stamped) == (False, True)
    with pytest.raises(LaunchError, match="stamped=True"):
        plain.moments()
    with pytest.raises(LaunchError, match="was not replayed"):
        stamped.moments()


def test_a_stamped_graph_gives_its_memory_back(emulator: Device) -> None:
    plans, _ = chain(emulator)
    before = emulator.memory().allocated
    graph = LaunchGraph(emulator, plans, stamped=True)
    assert emulator.memory().allocated == before + len(plans) * STAMPS.nbytes
    graph.close()
    assert emulator.memory().allocated == before


def test_scalars_of_a_plan_reach_its_stamped_form(emulator: Device) -> None:
    plans, result = chain(emulator)
    plans[-1](offset=5)
    LaunchGraph(emulator, plans, stamped=True).replay()
    assert result.to_numpy()[0] == 2 * 3 + 5


def test_a_kernel_that_has_no_stamped_form_is_named(emulator: Device) -> None:
    (plan, *_), _ = chain(emulator)
    plan.kernel = Reversed(n=1)
    with pytest.raises(ArgumentError, match="test_reversed is CUDA"):
        LaunchGraph(emulator, [plan], stamped=True)


def test_blocks_that_wait_for_each_other_need_room_in_their_stamped_form_too(
    emulator: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (GpuBuffer.zeros(emulator, F32, (100,)) for _ in range(2))
    plan = Launcher(emulator, Modules(emulator)).prepare(Together(n=100), y=y, x=x, factor=1.0, offset=0)
    LaunchGraph(emulator, [plan], stamped=True)
    monkeypatch.setattr(emulator, "most_blocks", lambda kernel, block: 2 if kernel is plan.loaded else 1)
    LaunchGraph(emulator, [plan])
    with pytest.raises(LaunchError, match=r"the 2 blocks .* holds 1 at once"):
        LaunchGraph(emulator, [plan], stamped=True)
