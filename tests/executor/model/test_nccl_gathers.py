"""A model whose parts NCCL gathers has the bits of one device: what it launches around the gathers, for one row and for
several. NCCL itself is not here: gathers are copies on the emulator's memory, launched one by one."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from executor.base.errors import LaunchError
from executor.choice.choice import GpuProfile
from executor.device.emulated import EmulatedDevice
from executor.device.gathers import PEERS, Gathers, NcclGather
from executor.device.protocol import Device
from executor.device.several import SeveralDevices
from executor.gguf.gguf_file import GgufFile
from executor.launch.launch import LaunchRecord
from executor.layers.calls import Recorder
from executor.layers.graph.gathers import DeferredNorm, GatherParts
from executor.layers.graph.values import StepValue
from executor.memory.workspace import Workspace
from executor.model.generation import LanguageModel
from executor.model.memory_needed import memory_needed
from executor.model.model_file import read_spec
from ptxgen.target import Target
from tests.executor.model.mixture import RECORDED, digest, mixed_logits
from tests.executor.model.variants import TOKENS, VARIANTS, Variant

SHARED = [variant for variant in VARIANTS if variant.name in ("llama-rope-freqs-untied", "qwen3-wide-heads")]
NORMS = GpuProfile().with_rules("deferred_norms", "last_block_reduction", "horizontal_fusion")
"""All that a layer of several ranks gathers would be digits."""

pytestmark = pytest.mark.usefixtures("shared_kernels")


class CopyingGathers:
    """NcclGroup on the host's memory."""

    cause = ""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.count = 0

    def all_gather(self, gather: NcclGather) -> None:
        self.count += 1
        for whole in gather.wholes:
            for rank, x in enumerate(gather.slices):
                ctypes.memmove(whole + rank * gather.nbytes, x, gather.nbytes)

    def starting(self) -> nullcontext[None]:
        return nullcontext()

    def trouble(self) -> str:
        return ""

    def abort(self, cause: str) -> None:
        raise AssertionError(cause)

    def close(self) -> None:
        pass


def shared(monkeypatch: pytest.MonkeyPatch, nccl_from: int) -> Iterator[tuple[SeveralDevices, CopyingGathers]]:
    monkeypatch.setenv("GPU_DEBUG", "1")  # launches are looked at one by one, so no step is a graph
    with monkeypatch.context() as patched:
        patched.setattr("executor.device.several.choose", lambda *_: Gathers(nccl_from, "a test"))
        patched.setattr("executor.device.nccl.NcclGroup", CopyingGathers)
        devices = SeveralDevices([EmulatedDevice(), EmulatedDevice()])
    with devices:
        copying = devices._nccl
        assert isinstance(copying, CopyingGathers)
        yield devices, copying


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SeveralDevices, CopyingGathers]]:
    yield from shared(monkeypatch, 0)


@pytest.mark.parametrize("variant", SHARED, ids=str)
def test_rows_have_the_bits_of_one_device(
    variant: Variant, two: tuple[SeveralDevices, CopyingGathers], tmp_path: Path
) -> None:  # fmt: skip
    devices, copying = two
    assert digest(mixed_logits(variant.write(tmp_path), devices)) == json.loads(RECORDED.read_text())[variant.name]
    assert copying.count > 0


@pytest.mark.parametrize(
    "profile", [pytest.param(GpuProfile(), id="plain"), pytest.param(NORMS, id="norms", marks=pytest.mark.slow)]
)
def test_so_has_a_token_whose_planes_nobody_gathers(
    profile: GpuProfile, two: tuple[SeveralDevices, CopyingGathers], tmp_path: Path
) -> None:
    devices, _ = two
    path = SHARED[0].write(tmp_path)
    names: list[str] = []

    def note(record: LaunchRecord) -> None:
        names.append(record.kernel.name)

    with EmulatedDevice() as alone, LanguageModel.load(path, alone, profile=profile) as model:
        expected = model.logits(TOKENS)
    with LanguageModel.load(path, devices, profile=profile) as model:
        model.decoder.launcher.observers.append(note)
        assert np.array_equal(model.logits(TOKENS), expected)
    assert "nccl_all_gather" in names
    assert not {"all_gather", "gather_digits"} & set(names)


def test_nobody_gets_values_who_asks_nccl_for_planes(two: tuple[SeveralDevices, CopyingGathers]) -> None:
    recorder = Recorder(Workspace(two[0]))
    own, whole = (StepValue.of(recorder.workspace.buffer(name, (size,))) for name, size in (("own", 64), ("whole", 128)))
    norm = DeferredNorm(whole, whole.buffer, 1e-5)
    for name, planes, of in (("attention", 3, None), ("ffn_down", 2, norm)):
        with pytest.raises(LaunchError, match=rf"^{name}: NCCL gathers values, not planes, here {planes} of .*whole"):
            GatherParts(name=name, own=own, whole=whole, planes=planes, norm=of).bind(recorder)
    assert not recorder.take()


@pytest.mark.slow
def test_from_some_bytes_on_nccl_gathers_and_below_kernels_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variant = SHARED[0]
    path, names = variant.write(tmp_path), set[str]()
    for devices, copying in shared(monkeypatch, 8192):
        with LanguageModel.load(path, devices, profile=NORMS) as model:
            assert 4 * max(model.spec.hidden, model.spec.layer.ff, model.spec.vocab) < 8192 <= 4 * 5 * model.spec.hidden
            model.decoder.launcher.observers.append(lambda record: names.add(record.kernel.name))
            model.decoder.step(TOKENS[0])
        assert {"all_gather", "gather_digits"} <= names
        assert copying.count == 0
        assert digest(mixed_logits(path, devices)) == json.loads(RECORDED.read_text())[variant.name]
        assert copying.count > 0


def test_a_dry_run_knows_where_slices_of_prompts_go(tmp_path: Path) -> None:
    with GgufFile.open(SHARED[0].write(tmp_path)) as file:
        spec = read_spec(file)
        ours, nccls = (
            memory_needed(file, spec, 64, Target(90), GpuProfile(), ranks=2, gathers=gathers) for gathers in (PEERS, Gathers(0))
        )
    assert nccls.prompts > ours.prompts
    assert (nccls.weights, nccls.cache) == (ours.weights, ours.cache)
