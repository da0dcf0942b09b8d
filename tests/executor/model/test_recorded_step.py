"""The launches of a step that is recorded without being run are those that a step launches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executor.choice.choice import GpuProfile
from executor.device.cuda import CudaDevice
from executor.device.dry_run import DryRunDevice
from executor.device.gpu import GpuModel
from executor.device.several import SeveralDevices
from executor.gguf.gguf_file import GgufFile
from executor.launch import modules
from executor.launch.launch import LaunchRecord
from executor.launch.recorded import RecordedLaunch, folded, launches_of
from executor.model.generation import LanguageModel
from executor.model.model_file import read_spec
from executor.model.recorded_step import DryModel
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from tests.cli.invoke import facts, invoke, refused
from tests.executor.device.fake_driver import FakeDriver
from tests.synthetic import Q, write_model

CONTEXT = 64
H200, H100, UNMEASURED = GPUS = (
    GpuModel("NVIDIA H200", "sm_90", 132), GpuModel("NVIDIA H100 80GB HBM3", "sm_90", 132), GpuModel("Fake GPU", "sm_80", 132)
)  # fmt: skip
TYPES = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "output": Q.Q8_0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "qwen2", TYPES, layers=3, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT)


@pytest.fixture(params=[H200, *(pytest.param(gpu, marks=pytest.mark.slow) for gpu in GPUS[1:])], ids=lambda gpu: gpu.name)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GpuModel:
    """One that runs nothing, two of which this machine has now; nothing is written or assembled for it."""
    gpu: GpuModel = request.param
    fake = FakeDriver(gpus=2, capability=(9, 0) if gpu.target == "sm_90" else (8, 0))
    monkeypatch.setattr(fake, "cuDeviceGetName", lambda length, _: (FakeDriver.CUresult.CUDA_SUCCESS, gpu.name.encode()))
    monkeypatch.setattr("executor.device.cuda.driver", lambda: fake)
    monkeypatch.setattr(CudaDevice, "compile", lambda self, text: b"code")
    monkeypatch.setattr(
        modules, "emit", lambda kernel, *_, **forms: SimpleNamespace(entry=kernel.name, text=f"{kernel}{forms}")
    )
    return gpu


def seen_of(model: LanguageModel) -> tuple[RecordedLaunch, ...]:
    """The graph of a token's step, of which an observer has seen each launch, in this order."""
    seen: list[LaunchRecord] = []
    with model.decoder.launcher.observed_by(seen.append):
        model.decoder.step(1)
    launches = launches_of(model.decoder.graph())
    assert [(one.place, one.kernel, one.grid) for one in seen] == [(one.place, one.kernel, one.grid) for one in launches]
    return launches


def facts_of(launches: tuple[RecordedLaunch, ...]) -> Any:
    return json.loads(json.dumps([launch.facts() for launch in launches]))


def test_explain_says_what_a_token_launches(path: Path, gpu: GpuModel) -> None:
    with CudaDevice() as device, LanguageModel.load(path, device) as model:
        launches = seen_of(model)
    said = facts("ptxrun", "explain", path)
    assert said["launches"] == facts_of(launches)
    fused = "hw_dp4a_q4k_gemv_residual_normed", "gated_hw_dp4a_q4k_gemv"
    assert {*fused} <= {one["kernel"] for one in said["launches"]}
    assert said["lacking"] == (
        [
            "dependent_launches needs sm_90, this is sm_80",
            "weight_pipelines needs sm_90 and 229376 bytes of shared memory a block, this is sm_80 with 166912",
        ]
        if gpu is UNMEASURED
        else []
    )
    shown = invoke("ptxrun", "explain", path).stdout.split("the kernel chosen")[0]
    named = {launch.kernel.name for launch in launches} - {"argmax"}  # which is the operation's name, too
    assert [word for word in shown.split() if word in named] == [
        one.kernel.name for group in folded(launches) for one in group.launches if one.kernel.name in named
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_kind_of_step_is_recorded_as_it_is_launched(path: Path, gpu: GpuModel, ranks: int) -> None:
    devices = [CudaDevice(rank) for rank in range(ranks)]
    with devices[0] if ranks == 1 else SeveralDevices(devices) as device:
        profile, dry = GpuProfile.for_device(device), DryRunDevice.like(device)
        with LanguageModel.load(path, device) as model:
            decoder, engine = model.decoder, model.engine(slots=8)
            token = seen_of(model)
            decoder.reset()
            decoder.feed([1] * 32)
            prompt = launches_of(decoder.prompt_graph(32))
            assert decoder._steps.captures == 1
            decoder.reset()
            for slot in range(8):
                engine.set_table(slot, [slot])
            engine.step([Row(slot, 7, 0, scored=True) for slot in range(8)])
            assert engine.steps.replayed is not None
            sequences = launches_of(engine.steps.replayed)
    with GgufFile.open(path) as file:
        recorded = DryModel(file, read_spec(file), CONTEXT, dry, profile)
    assert facts_of(recorded.token()) == facts_of(token)
    assert facts_of(recorded.prompt(33)) == facts_of(prompt)
    assert facts_of(recorded.sequences(8)) == facts_of(sequences)
    assert any(launch.dependent for launch in token) == (gpu is not UNMEASURED)


def test_a_prompt_that_is_read_token_by_token_launches_a_token_without_head(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, ff=64, context=16)
    dry = DryRunDevice(UNMEASURED)
    with GgufFile.open(path) as file:
        model = DryModel(file, read_spec(file), 16, dry, GpuProfile.for_device(dry.as_device))
        assert facts_of(model.prompt(16)) == facts_of(model.token(head=False))
        assert [launch.place.operation for launch in model.token(head=False)][-1] == "advance"
        with pytest.raises(ArgumentError, match="the context is 16 tokens; for several sequences at least 32"):
            model.sequences(2)


def test_layers_that_launch_the_same_are_one(path: Path, gpu: GpuModel) -> None:
    with GgufFile.open(path) as file:
        dry = DryRunDevice(gpu)
        model = DryModel(file, read_spec(file), CONTEXT, dry, GpuProfile.for_device(dry.as_device))
        launches = model.token()
    groups = folded(launches)
    assert [group.numbers for group in groups] == ["-", "0", "1", "2", "-"]
    assert sum(max(1, len(group.layers)) * sum(one.launches for one in group.launches) for group in groups) == len(launches)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sequences", "8", "--prompt", "8"), "leave one of the two out"),
        (("--prompt", "65"), "tokens is 65; allowed: a whole number from 1 to 64"),
        (("--kv-type", "f16"), "--kv-type is of --sequences"),
        (("--sequences", "5000"), "sequences is 5000; allowed: a whole number from 1 to 4096"),
    ],
)
def test_a_step_that_there_is_not_is_refused(path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused("ptxrun", "explain", path, "--device", "emulator", *words)
