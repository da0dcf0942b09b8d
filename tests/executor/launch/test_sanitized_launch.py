"""What the emulated device tells the sanitiser of a launch: the bounds and directions of its own arguments, and whether a graph
starts it early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from executor.base.errors import SanitizerError
from executor.device import open_device
from executor.device.protocol import Node
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.types import F32
from tests.executor.launch.dependent_chain import results
from tests.executor.launch.fake import NoModules, RememberingDevice
from tests.executor.launch.kernels import Accumulate, ReadsBeyond, Scale
from tests.ptxgen.kernels import gemvs

Make = Callable[..., HwDp4aGemv]


@dataclass(frozen=True)
class WritesItsInput(Accumulate):
    """Wrong on purpose: what the signature only reads is written."""

    name = "test_writes_its_input"

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * 64 + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.x[i], k.load(k.arg.total[i]))


@dataclass(frozen=True)
class Dependent(Scale):
    """y = w x, f32[n], dependent; waits: in time."""

    name = "test_dependent_launch"
    least_sm = 90
    waits: bool = True

    def signature(self) -> Signature:
        return {"y": write(F32, self.n), "w": read(F32, self.n, constant=True), "x": read(F32, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // 64), block=64, dependent=True)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * 64 + k.tid.x
        weight = k.load(k.arg.w[k.min(i, self.n - 1)])
        if self.waits:
            k.griddepcontrol(action="wait")
        with k.when(i < self.n):
            k.store(k.arg.y[i], weight * k.load(k.arg.x[i]))


def test_an_argument_ends_where_its_signature_says_and_not_where_its_allocation_does() -> None:
    with open_device("emulator", sanitize=True) as device:
        pool = GpuBuffer.zeros(device, F32, (300,), "the pool")
        x, y = pool.view(400, (100,)), GpuBuffer.empty(device, F32, (100,))
        launcher = Launcher(device, Modules(device))
        launcher(Scale(n=100), y=y, x=x, factor=1.0, offset=0)
        with pytest.raises(SanitizerError) as caught:
            launcher(ReadsBeyond(n=100), y=y, x=x, factor=1.0, offset=0)
        (finding,) = map(str, caught.value.findings)
        assert finding.startswith("out of bounds")
        assert "0 bytes past the end of the pool as x (400 bytes)" in finding


def test_what_a_signature_only_reads_is_not_written() -> None:
    with open_device("emulator", sanitize=True) as device:
        total, x = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,), "the activations")
        with pytest.raises(SanitizerError, match="read-only") as caught:
            Launcher(device, Modules(device))(WritesItsInput(n=100), total=total, x=x)
        assert "byte 0 of the activations as x" in str(caught.value.findings[0])


def test_a_part_of_memory_that_nothing_wrote_is_remembered_as_written_by_launches() -> None:
    with open_device("emulator", sanitize=True) as device:
        pool = GpuBuffer.empty(device, F32, (200,))
        first, second = pool.view(0, (100,)), pool.view(400, (100,))
        x, launcher = GpuBuffer.zeros(device, F32, (100,)), Launcher(device, Modules(device))
        launcher(Scale(n=100), y=second, x=x, factor=1.0, offset=1)
        launcher(Accumulate(n=100), total=second, x=x)
        with pytest.raises(SanitizerError, match="nothing wrote"):
            launcher(Accumulate(n=100), total=first, x=x)


def test_one_buffer_may_be_two_inputs() -> None:
    with open_device("emulator", sanitize=True) as device:
        y, x = GpuBuffer.empty(device, F32, (100,)), GpuBuffer.from_numpy(device, np.full(100, 3, np.float32))
        launcher = Launcher(device, Modules(device))
        plan = launcher.prepare(Dependent(n=100), y=y, w=x, x=x)
        plan()
        assert (y.to_numpy() == 9).all()
        with pytest.raises(SanitizerError, match="unordered"):  # what may be written before is not constant by another name
            LaunchGraph(launcher.device, [plan]).replay()


@pytest.mark.parametrize("waits", [True, False])
def test_a_kernel_that_a_graph_makes_dependent_must_wait(waits: bool) -> None:
    with open_device("emulator", sanitize=True) as device:
        y, w, x = (GpuBuffer.zeros(device, F32, (100,), name) for name in "ywx")
        launcher = Launcher(device, Modules(device))
        plans = [
            launcher.prepare(Scale(n=100), y=x, x=w, factor=2.0, offset=1),
            launcher.prepare(Dependent(n=100, waits=waits), y=y, w=w, x=x),
        ]
        for plan in plans:
            plan()  # one by one each starts when the one before has ended
        graph = LaunchGraph(launcher.device, plans)
        if waits:
            graph.replay()
            return
        with pytest.raises(SanitizerError) as caught:
            graph.replay()
        load, store, end = map(str, caught.value.findings)
        assert "ends, and none of its threads has waited" in end
        assert load.startswith("unordered: test_dependent_launch, thread (0,0,0) of block (0,0,0) reads")
        assert store.startswith("unordered: test_dependent_launch, thread (0,0,0) of block (0,0,0) writes")
        assert "byte 0 of x as x" in load
        assert "byte 0 of y as y" in store


@pytest.mark.parametrize("kind", [HwDp4aGemv, gemvs.residual, gemvs.batched], ids=lambda kind: kind.__name__)
def test_a_chain_of_gemvs_that_are_dependent_is_clean_and_gives_the_bits_of_one_that_does_not(
    kind: Make,
) -> None:
    """On a GPU: tests/gpu/test_dependent_gpu.py."""
    more: dict[str, Any] = {"m": 2} if kind is gemvs.batched else {}
    kernel = kind(format=FORMATS["Q4_0"], k=256, n=3, num_warps=2, rows_per_warp=1, **more)
    with open_device("emulator", sanitize=True) as device:
        assert results(device, kernel, dependent=True, replays=2) == results(device, kernel, dependent=False, replays=2)


class Graphs(RememberingDevice):
    """Remembers the nodes of graphs."""

    def make_graph(self, nodes: Sequence[Node]) -> Any:
        self.nodes = list(nodes)
        return super().make_graph(nodes)


class DependentForm(Dependent):
    """The same by a profile's dependent launches: `emit` says where it waits."""

    waits_inside = True

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // 64), block=64)


class Keeping(DependentForm):
    """Writes some of w, too."""

    def signature(self) -> Signature:
        return super().signature() | {"w": update(F32, self.n, settled=True)}


FORMS = [Dependent(n=100), DependentForm(n=100), Keeping(n=100)]


@pytest.mark.parametrize("kernel", FORMS, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("written", "dependent"), [("other", True), ("w", False), ("a part of w's memory", False)])
def test_a_kernel_is_not_dependent_where_a_launch_before_it_in_the_graph_writes_what_it_reads_before_it_waits(
    written: str, dependent: bool, kernel: Dependent, behind: bool
) -> None:
    with Graphs() as device:
        launcher = Launcher(device, NoModules())
        pool, other = GpuBuffer.zeros(device, F32, (200,)), GpuBuffer.zeros(device, F32, (100,))
        w = pool.view(0, (100,))
        target = {"other": other, "w": w, "a part of w's memory": pool.view(400, (100,))}[written]
        x, y = GpuBuffer.zeros(device, F32, (100,)), GpuBuffer.zeros(device, F32, (100,))
        writer = launcher.prepare(Scale(n=100), y=target, x=x, factor=1.0, offset=0)
        reader = (launcher.prepare if kernel.launch().dependent else launcher.prepare_dependent)(kernel, y=y, w=w, x=x)
        LaunchGraph(launcher.device, [reader, writer] if behind else [writer, reader])
        found = [node.dependent for node in device.nodes]
        assert found == ([True, False] if behind else [False, dependent])
        if behind:  # and the writer waits for the reader of the same bytes
            assert device.nodes[1].after == ((0,) if written == "w" else ())
