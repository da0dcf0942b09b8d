"""The debug mode on the emulator: it names the first launch that writes a NaN or an infinity, and costs nothing when off."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.base.errors import NumericalFault
from executor.device import Device
from executor.launch.launch import Launcher, LayerOperation
from executor.launch.modules import Modules
from executor.measure.debug import FiniteCheck, Statistics, watch
from executor.memory.buffers import GpuBuffer
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.dsl.arguments import Array
from ptxgen.kernels.registry import entries, find
from ptxgen.types import F32
from tests.executor.launch.kernels import Scale
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

VARIABLE = "GPU_DEBUG"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=32)


def damage(path: Path, tensor: str, row: int, value: float) -> None:
    """Write this f16 as the scale of the first block of a row."""
    found = next(t for t in gguf.GGUFReader(path).tensors if t.name == tensor)
    with path.open("r+b") as file:
        file.seek(found.data_offset + row * found.n_bytes // int(found.shape[1]))
        file.write(np.float16(value).tobytes())


def generate(path: Path, device: Device) -> list[int]:
    return LanguageModel.load(path, device).generate([1, 2, 3], max_tokens=3, sampler=Sampler()).tokens


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_damaged_weights_are_named_by_layer_and_operation(
    path: Path, emulator: Device, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    damage(path, "blk.1.ffn_down.weight", 17, value)
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(NumericalFault) as caught:
        generate(path, emulator)
    fault = caught.value
    rows = 8  # of the step that the prompt is, idle ones included
    assert (fault.layer, fault.operation, fault.argument, fault.index, fault.count) == (1, "ffn_down", "y", (0, 17), rows)
    first, wrote, *read = str(fault).split("\n")
    assert first.startswith("layer 1 ffn_down: ")
    assert "at [0, 17], and 7 more" in first
    assert "rms" in wrote
    weights = next(line for line in read if line.startswith("  read w"))
    assert "blk.1.ffn_down.weight" in weights
    assert f"row 17 as Q8_0: 96 numbers: {32 if np.isnan(value) else 0} NaN" in weights


def test_a_fault_outside_the_layers_is_named_too(path: Path, emulator: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(path, "token_embd.weight", 1, np.nan)
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(NumericalFault, match=r"^embed: batched_embedding_lookup") as caught:
        generate(path, emulator)
    assert (caught.value.layer, caught.value.index, caught.value.count) == (None, (0, 0), 32)


def test_a_good_model_gives_the_same_tokens(path: Path, emulator: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = generate(path, emulator)
    monkeypatch.setenv(VARIABLE, "1")
    assert generate(path, emulator) == plain


def test_each_layer_is_logged_with_what_it_wrote_last(
    path: Path, emulator: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with caplog.at_level(logging.DEBUG, "executor.measure.debug"):
        LanguageModel.load(path, emulator).logits([1])
    said = [
        record.message
        for record in caplog.records
        if record.levelno == logging.DEBUG and record.name == "executor.measure.debug"
    ]
    assert [line.split(":")[0] for line in said] == [
        "embed wrote y (hidden f32[64])",
        "layer 0 ffn_down wrote y (hidden f32[64])",
        "layer 1 ffn_down wrote y (hidden f32[64])",
    ]
    assert all("64 numbers: 0 NaN, 0 infinite" in line for line in said)


@pytest.mark.parametrize("off", ["", "0", "false"])
def test_switched_off_it_waits_for_nothing(path: Path, emulator: Device, monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    monkeypatch.setenv(VARIABLE, off)
    model = LanguageModel.load(path, emulator)
    before = emulator.waits
    made = model.generate([1, 2, 3], max_tokens=4, sampler=Sampler())
    assert emulator.waits - before == len(made.tokens) == 4  # each token is read, and nothing else is waited for
    assert not model.decoder.launcher.observers
    assert model.decoder.captures > 0


def test_switched_on_it_waits_for_each_launch_and_replays_no_graph(
    path: Path, emulator: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    model = LanguageModel.load(path, emulator)
    before = emulator.waits
    model.decoder.step(1)
    assert emulator.waits - before >= len(model.decoder.prepare().launches.calls)
    assert model.decoder.captures == 0


def test_the_environment_decides(emulator: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(emulator, Modules(emulator))
    watch(launcher)
    assert launcher.observers == []
    monkeypatch.setenv(VARIABLE, "true")
    watch(launcher)
    assert [type(observer) for observer in launcher.observers] == [FiniteCheck]


def check(device: Device) -> Launcher:
    launcher = Launcher(device, Modules(device))
    launcher.observers.append(FiniteCheck(launcher))
    return launcher


def test_the_inputs_are_told_with_their_statistics(emulator: Device) -> None:
    x = GpuBuffer.from_numpy(emulator, np.array([3e38, 0.0, -4.0, 4.0], np.float32), name="activations")
    y = GpuBuffer.empty(emulator, F32, (4,), name="result")
    with pytest.raises(NumericalFault) as caught:
        check(emulator)(Scale(n=4), LayerOperation(2, "ffn_up"), y=y, x=x, factor=2.0, offset=0)
    assert str(caught.value).split("\n") == [
        "layer 2 ffn_up: test_scale(n=4) wrote inf to y (result f32[4]) at [0], and 0 more",
        "  wrote y: 4 numbers: 0 NaN, 1 infinite, 1 zero; the finite ones from -8 to 8, mean 0, rms 6.532",
        "  read x (activations f32[4]): 4 numbers: 0 NaN, 0 infinite, 1 zero; "
        "the finite ones from -4 to 3e+38, mean 7.5e+37, rms 1.5e+38",
        "  read factor: 2.0",
        "  read offset: 0",
    ]


def arguments_of(device: Device, name: str, **shape: int) -> tuple[Any, dict[str, Any]]:
    kernel = find(name).make(**shape)
    given = kernel.inputs(np.random.default_rng(1))
    return kernel, {n: GpuBuffer.from_numpy(device, v) if isinstance(v, np.ndarray) else v for n, v in given.items()}


@pytest.mark.parametrize("name", ["split_attention", "kv_cache_scatter", "incremental_attention"])
def test_what_a_kernel_leaves_unwritten_on_purpose_is_no_fault(emulator: Device, name: str) -> None:
    shape = {"kv_heads": 2, "head_dim": 32, "max_len": 300} | ({} if name == "kv_cache_scatter" else {"heads": 4})
    kernel, arguments = arguments_of(emulator, name, **shape)
    if name == "kv_cache_scatter":
        arguments["k_cache"].upload(np.full((2, 300, 32), np.nan, np.float32))
    else:
        arguments["length"] = 5  # of 300: NaN lies behind, and chunks have no positions
    check(emulator)(kernel, **arguments)


def test_every_kernel_that_sees_a_cache_says_that_it_touches_only_a_part() -> None:
    """What lies beyond the length was never written, so the debug mode must not look at it."""
    seen = []
    for entry in entries().values():
        caches = {n: a for n, a in next(entry.cases()).signature().items() if n in ("k_cache", "v_cache")}
        seen += [entry.name] * bool(caches)
        assert all(isinstance(argument, Array) and argument.partial for argument in caches.values()), entry.name
    assert "kv_cache_scatter_indirect" in seen


def test_a_fault_in_the_parts_of_split_attention_shows_where_they_are_put_together(emulator: Device) -> None:
    kernel, arguments = arguments_of(emulator, "split_attention", heads=2, kv_heads=1, head_dim=32, max_len=300)
    arguments["length"] = 200
    keys, values = np.random.default_rng(1).standard_normal((2, 1, 300, 32), np.float32)
    values[0, 150, 3] = np.nan
    arguments["k_cache"].upload(keys)
    arguments["v_cache"].upload(values)
    launcher = check(emulator)
    launcher(kernel, LayerOperation(0, "attention"), **arguments)
    reduce = find("split_attention_reduce").make(heads=2, head_dim=32, max_len=300)
    out = GpuBuffer.empty(emulator, F32, (2, 32))
    with pytest.raises(NumericalFault, match="layer 0 attention") as caught:
        launcher(reduce, LayerOperation(0, "attention"), out=out, **{n: arguments[n] for n in ("peaks", "totals", "sums")})
    assert caught.value.index == (0, 3)
    assert "  read sums (buffer f32[2, 3, 32]): only a part" in str(caught.value)


def test_statistics_are_of_the_finite_numbers() -> None:
    found = Statistics.of(np.array([np.nan, np.inf, -np.inf, 0.0, 3.0, -5.0], np.float32))
    assert (found.size, found.nan, found.infinite, found.zeros) == (6, 1, 2, 1)
    assert (found.least, found.largest) == (-5.0, 3.0)
    assert found.mean == pytest.approx(-2 / 3)
    assert found.rms == pytest.approx((34 / 3) ** 0.5)
    assert Statistics.of(np.full(2, np.nan, np.float32)).mean is None
