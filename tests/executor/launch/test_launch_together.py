"""Launches of several devices that wait for each other: on the emulator all ranks run at once, by themselves or in graphs, and
what cannot end well is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest

from executor.base.errors import DeviceError, LaunchError, SanitizerError
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import Node
from executor.launch.graph import LaunchGraph, replay_together
from executor.launch.launch import Launcher, Plan, launch_together
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.peers import peer_addresses
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.types import F32, U32
from tests.executor.launch.ranks import launched
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

pytestmark = pytest.mark.usefixtures("shared_kernels")
GATHER = AllGather(n=64, ranks=2)
ADD = AddInPlace(n=64)


@dataclass
class Ranks:
    """Devices that gather in turn into `turns` arrays, and add each to a sum of their own."""

    devices: list[EmulatedDevice]
    turns: int = 2
    launchers: list[Launcher] = field(init=False)
    sums: list[GpuBuffer] = field(init=False)
    gathers: list[list[Plan]] = field(init=False)
    adds: list[list[Plan]] = field(init=False)

    def __post_init__(self) -> None:
        devices = self.devices
        self.launchers = [Launcher(device, Modules(device)) for device in devices]
        flags = [GpuBuffer.zeros(device, U32, (GATHER.blocks, GATHER.ranks), "flags") for device in devices]
        peers = peer_addresses(flags, "peers")
        slices = [GpuBuffer.from_numpy(d, np.full((1, 32), r + 1, np.float32)) for r, d in enumerate(devices)]
        self.sums = [GpuBuffer.zeros(device, F32, (64,), "sums") for device in devices]
        self.gathers, self.adds = [], []
        for turn in range(self.turns):
            whole = [GpuBuffer.empty(device, F32, (1, 64), f"whole {turn}") for device in devices]
            at = peer_addresses(whole)
            self.gathers.append(
                [
                    launcher.prepare(GATHER, y=whole[r], x=slices[r], flags=flags[r], ys=at[r], peers=peers[r], rank=r)
                    for r, launcher in enumerate(self.launchers)
                ]
            )
            self.adds.append(
                [
                    launcher.prepare(ADD, x=self.sums[r], delta=whole[r].view(0, (64,)))
                    for r, launcher in enumerate(self.launchers)
                ]
            )

    def step(self, turn: int) -> None:
        launch_together(self.gathers[turn % self.turns])
        for add in self.adds[turn % self.turns]:
            add()

    def summed(self) -> list[list[float]]:
        """Of each rank, a value of each slice."""
        return [[float(value) for value in sums.to_numpy()[[0, 63]]] for sums in self.sums]


Opens = Callable[..., list[EmulatedDevice]]


@pytest.fixture
def opened() -> Iterator[Opens]:
    with ExitStack() as stack:
        yield lambda count=2, **settings: [stack.enter_context(EmulatedDevice(**settings)) for _ in range(count)]


@pytest.mark.parametrize(("sanitize", "seed"), [(False, None), (True, None), (True, 1), (True, 2)])
def test_what_one_rank_has_all_have_after_each_gather(opened: Opens, sanitize: bool, seed: int | None) -> None:
    ranks = Ranks(opened(sanitize=sanitize, seed=seed))
    for turn in range(5):
        ranks.step(turn)
    assert ranks.summed() == [[5, 10]] * 2


def test_gathers_into_one_array_again_and_again_are_found(opened: Opens) -> None:
    ranks = Ranks(opened(sanitize=True), turns=1)
    ranks.step(0)
    with pytest.raises(SanitizerError, match="that a launch before on device 1 read, and nothing orders the two"):
        ranks.step(1)


def test_a_gather_between_two_of_one_array_is_enough(opened: Opens) -> None:
    ranks = Ranks(opened(sanitize=True))
    for turn in (0, 1, 0, 1):
        ranks.step(turn)
    with pytest.raises(SanitizerError, match=r"that a launch before on device \d read"):
        ranks.step(1)


@pytest.mark.parametrize("sanitize", [False, True])
def test_graphs_of_all_ranks_are_replayed_together(opened: Opens, sanitize: bool) -> None:
    ranks = Ranks(opened(sanitize=sanitize))
    plans = [[ranks.gathers[0][r], ranks.adds[0][r], ranks.gathers[1][r], ranks.adds[1][r]] for r in range(2)]
    graphs = [LaunchGraph(device, its) for device, its in zip(ranks.devices, plans, strict=True)]
    for _ in range(3):
        replay_together(graphs)
    assert ranks.summed() == [[6, 12]] * 2
    with pytest.raises(LaunchError, match=r"waits for the graphs of 2 devices; launch them all: replay_together\(graphs\)"):
        graphs[0].replay()
    with pytest.raises(LaunchError, match="got 1 on 1, with 2 launches"):
        replay_together(graphs[:1])


def test_in_a_graph_a_launch_that_waits_for_devices_comes_after_all_before_it(opened: Opens) -> None:
    """It tells the others that this device is done with whatever it had, though it has nothing to do with its own memory."""

    class Keeping(EmulatedDevice):
        after: list[tuple[int, ...]]

        def make_graph(self, nodes: Sequence[Node]) -> object:
            self.after = [node.after for node in nodes]
            return super().make_graph(nodes)

    with Keeping() as here:
        (there,) = opened(1)
        ranks = Ranks([here, there])
        other = [GpuBuffer.zeros(here, F32, (64,)) for _ in range(2)]
        beside = ranks.launchers[0].prepare(ADD, x=other[0], delta=other[1])
        gather, again = ranks.gathers[0][0], ranks.gathers[1][0]
        LaunchGraph(here, [beside, ranks.adds[0][0], gather, beside, again])
        assert here.after == [(), (), (0, 1), (2,), (3,)]


def test_a_capture_of_all_ranks_records_and_launches_nothing(opened: Opens) -> None:
    ranks = Ranks(opened())
    with ranks.launchers[0].recording() as first:
        with pytest.raises(LaunchError, match="captured on all of them or none; not captured: emulator"):
            launch_together(ranks.gathers[0])
        with ranks.launchers[1].recording() as second:
            launch_together(ranks.gathers[0])
    assert [str(plan.kernel) for plan in (*first, *second)] == [str(GATHER)] * 2
    assert not ranks.gathers[0][0].arguments["flags"].to_numpy().any()


def test_what_are_not_all_ranks_of_one_kernel_is_refused(opened: Opens) -> None:
    ranks = Ranks(opened())
    first, second = ranks.gathers[0]
    for plans in ([first], [first, first], [first, second, second], [first, ranks.adds[0][1]]):
        with pytest.raises(LaunchError, match=r"all_gather\(n=64, ranks=2, m=1\) is launched on 2 devices at once, got"):
            launch_together(plans)
    with pytest.raises(LaunchError, match="the plan at place 0 is of rank 1"):
        launch_together([second, first])
    with pytest.raises(LaunchError, match="waits for its launches on 2 devices; launch them all"):
        first()


def test_arrays_of_all_ranks_are_alike_and_on_a_device_each(opened: Opens) -> None:
    one, other = opened()
    here, there = GpuBuffer.zeros(one, F32, 4), GpuBuffer.zeros(other, F32, 4)
    assert [int(value) for value in peer_addresses([here, there])[1].to_numpy()] == [here.pointer, there.pointer]
    with pytest.raises(DeviceError, match="are alike, and these are not"):
        peer_addresses([here, GpuBuffer.zeros(other, F32, 5)])
    with pytest.raises(DeviceError, match="on a device each, and these are on"):
        peer_addresses([here, here])
    with pytest.raises(DeviceError, match="cannot run kernels together with"):
        peer_addresses([here, GpuBuffer.zeros(opened(1, sanitize=True)[0], F32, 4)])


@pytest.mark.parametrize("m", [1, 3])
def test_the_executor_gives_the_bits_of_the_conformance_kit(opened: Opens, m: int) -> None:
    kernel = AllGather(n=24, ranks=4, m=m)
    arguments = inputs(kernel)
    results = launched(opened(4, sanitize=True), kernel, arguments)
    assert_matches_reference(kernel, arguments, results)
    expected, _ = emulate(kernel, arguments, sanitize=False)
    assert {name: results[name].tobytes() for name in expected} == {name: one.tobytes() for name, one in expected.items()}
