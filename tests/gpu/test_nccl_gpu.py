"""NCCL as the second opinion of our gathers, between two GPUs: the same bytes, and of a split model the bits of one GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import DeviceFailed
from executor.choice.choice import GpuProfile
from executor.device.cuda import CudaDevice
from executor.device.cuda_gpu import driver
from executor.device.gathers import Gathers
from executor.device.protocol import ReadOwn, copying
from executor.device.several import SeveralDevices
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.layers.calls import LaunchBatch
from executor.layers.graph.gathers import GatherParts
from executor.layers.graph.values import StepValue
from executor.memory.buffers import GpuBuffer
from executor.memory.workspace import Workspace
from executor.model.generation import LanguageModel
from ptxgen.types import F32
from tests.executor.model.mixture import RECORDED, digest, mixed_logits
from tests.executor.model.variants import TOKENS, Variant
from tests.gpu.test_split_model_gpu import NORMS, SHARED

pytestmark = pytest.mark.gpu

OURS, NCCLS = Gathers(), Gathers(0, "a test")
SHAPES = [(1, 4096), (1, 14336), (1, 28672), (1, 128256), (1, 14), (9, 4096), (512, 8192), (512, 28672), (32, 128256)]
"""Rows and width of what layers and heads of the 8B and the 70B gather, and a narrow one."""


@pytest.fixture
def two() -> Iterator[SeveralDevices]:
    """Two GPUs that have both ways."""
    pytest.importorskip("nccl.core", reason="needs nccl4py")
    if int(driver().cuDeviceGetCount()[1]) < 2:
        pytest.skip("needs two GPUs")
    with SeveralDevices([CudaDevice(rank) for rank in range(2)], gathers=1) as devices:
        yield devices


def plans(devices: SeveralDevices, workspace: Workspace, gathers: Gathers, x: GpuBuffer, whole: GpuBuffer) -> list[Plan]:
    """What a layer launches to gather so."""
    before, devices.gathers = devices.gathers, gathers
    batch = LaunchBatch(Launcher(devices, Modules(devices)), workspace)
    GatherParts(name="test", own=StepValue.of(x), whole=StepValue.of(whole)).bind(batch)
    devices.gathers = before
    return batch.take()


def bytes_of_ranks(devices: SeveralDevices, buffer: GpuBuffer) -> list[NDArray[np.uint32]]:
    found = [np.empty(buffer.shape, np.uint32) for _ in devices.devices]
    for device, pointer, array in zip(devices.devices, devices.of_ranks(buffer.pointer), found, strict=True):
        device.download(pointer, array)
    return found


@pytest.mark.parametrize(("rows", "n"), SHAPES)
def test_nccl_and_our_kernel_gather_the_same_bytes(rows: int, n: int, two: SeveralDevices) -> None:
    """Any bits, NaN among them; launched one by one and as graphs, in turn."""
    rng = np.random.default_rng(n)
    x = GpuBuffer.empty(two, F32, (rows, n // 2))
    wholes = [GpuBuffer.zeros(two, F32, (rows, n), f"by {way}") for way in ("ours", "NCCL")]
    with Workspace(two) as workspace:
        ways = [plans(two, workspace, by, x, whole) for by, whole in zip((OURS, NCCLS), wholes, strict=True)]
        graph = LaunchGraph(two, [plan for way in ways for plan in way])
        for launched in ("one by one", "a graph", "a graph"):
            slices = [rng.integers(1 << 32, size=(rows, n // 2), dtype=np.uint32) for _ in range(2)]
            two.upload_from(x.pointer, x.nbytes, ReadOwn(lambda rank, own=slices: copying(own[rank])))  # type: ignore[misc]
            for whole in wholes:
                whole.fill(0)
            if launched == "a graph":
                graph.replay()
            else:
                for way in ways:
                    for plan in way:
                        plan()
            expected = np.concatenate(slices, axis=1)
            for whole in wholes:
                for rank, found in enumerate(bytes_of_ranks(two, whole)):
                    assert np.array_equal(found, expected), (whole.name, rank, launched)
        graph.close()


@pytest.mark.parametrize("variant", SHARED, ids=str)
@pytest.mark.parametrize("gathers", [0, 8192])
def test_rows_have_the_bits_that_the_emulator_gave(
    gathers: int, variant: Variant, two: SeveralDevices, tmp_path: Path
) -> None:  # fmt: skip
    two.gathers = Gathers(gathers, "a test")
    assert digest(mixed_logits(variant.write(tmp_path), two)) == json.loads(RECORDED.read_text())[variant.name]


def test_tokens_have_the_bits_of_one_gpu_by_both(two: SeveralDevices, tmp_path: Path) -> None:
    path = SHARED[1].write(tmp_path)
    for profile in (None, GpuProfile("fast"), NORMS):
        with LanguageModel.load(path, two.devices[0], profile=profile) as one:
            alone = one.logits(TOKENS), one.generate(TOKENS, max_tokens=40).tokens
        for gathers in (OURS, NCCLS):
            two.gathers = gathers
            with LanguageModel.load(path, two, profile=profile) as model:
                assert np.array_equal(model.logits(TOKENS), alone[0]), gathers
                assert model.generate(TOKENS, max_tokens=40).tokens == alone[1], gathers


@pytest.mark.timeout(120)
def test_when_nccl_is_aborted_all_ends_and_can_be_closed(two: SeveralDevices) -> None:
    """With a graph that holds a gather, for which NCCL waits."""
    x, whole = GpuBuffer.zeros(two, F32, (1, 2048)), GpuBuffer.zeros(two, F32, (1, 4096))
    graph = LaunchGraph(two, plans(two, Workspace(two), NCCLS, x, whole))
    graph.replay()
    two.synchronize()
    assert two._nccl is not None
    two._nccl.abort("a test wants it")
    with pytest.raises(DeviceFailed, match="a test wants it"):
        two.synchronize()
    with pytest.raises(DeviceFailed, match="have failed and refuse launching"):
        graph.replay()
    two.close()
