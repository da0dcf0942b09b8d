"""Weights reach the device byte for byte: where its memory is the host's each in its own, else all in one pool."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.base.errors import DeviceError, LaunchError, ModelError
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import ReadInto
from executor.gguf.gguf_file import GgufFile
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import DeviceAllocation, GpuBuffer
from executor.memory.single_weight import host_weight
from executor.memory.weights import load_weights
from ptxgen.types import F32, U8
from tests.executor.launch.kernels import Accumulate
from tests.synthetic import write_model


class Copying(EmulatedDevice):
    """A device whose memory is not the host's, as a GPU."""

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int | None:
        return None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_model(path, "llama", types={"": Q.Q4_K, "token_embd": Q.Q6_K, "attn_k": Q.F16, "attn_v": Q.F32}, layers=2)
    return GgufFile.open(path)


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
def test_every_tensor_has_the_bytes_and_shape_of_the_file(file: GgufFile, kind: type[EmulatedDevice]) -> None:
    with kind() as device:
        weights = load_weights(device, file, list(file.tensors))
        assert list(weights) == list(file.tensors)
        for name, info in file.tensors.items():
            weight = weights[name]
            assert (weight.k, weight.format.name) == (info.shape[-1], info.ggml_type.name)
            assert weight.buffer.to_numpy().tobytes() == file.data(name).tobytes()
            assert weight.buffer.pointer % 16 == 0
        assert weights.nbytes == sum(info.nbytes for info in file.tensors.values())


def test_matrices_are_rows_of_bytes_and_f32_vectors_are_numbers(file: GgufFile, emulator: Device) -> None:
    matrix, vector = "blk.0.ffn_down.weight", "blk.1.attn_norm.weight"
    weights = load_weights(emulator, file, [matrix, vector])
    n, k = file.tensors[matrix].shape
    assert (weights[matrix].n, weights[matrix].k, weights[matrix].buffer.dtype) == (n, k, U8)
    assert weights[matrix].buffer.shape == (n, file.tensors[matrix].nbytes // n)
    assert (weights[vector].buffer.dtype, weights[vector].buffer.shape) == (F32, file.tensors[vector].shape)


def test_on_the_emulator_each_tensor_has_memory_of_its_own_that_cannot_be_written(file: GgufFile, emulator: Device) -> None:
    weights = load_weights(emulator, file, list(file.tensors))
    assert len({weight.buffer.allocation for weight in weights.values()}) == len(file.tensors)
    for weight in weights.values():
        with pytest.raises(DeviceError, match="read-only"):
            weight.buffer.fill(0)


def test_a_device_that_copies_gets_one_pool_with_aligned_tensors(file: GgufFile) -> None:
    with Copying() as device:
        weights = load_weights(device, file, list(file.tensors))
        assert len({weight.buffer.allocation for weight in weights.values()}) == 1
        assert all(weight.buffer.pointer % 256 == 0 for weight in weights.values())
        spans = sorted((weight.buffer.pointer, weight.buffer.pointer + weight.nbytes) for weight in weights.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
def test_progress_ends_at_the_total(file: GgufFile, kind: type[EmulatedDevice]) -> None:
    steps: list[tuple[int, int]] = []
    with kind() as device:
        total = load_weights(device, file, list(file.tensors), lambda done, total: steps.append((done, total))).nbytes
    assert steps == sorted(steps)
    assert steps[-1] == (total, total)


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
def test_freeing_gives_all_memory_back(file: GgufFile, kind: type[EmulatedDevice]) -> None:
    with kind() as device:
        weights = load_weights(device, file, list(file.tensors))
        weights.free()
        assert device.memory().allocated == 0
        with pytest.raises(DeviceError, match="was freed"):
            weights["output_norm.weight"].buffer.to_numpy()


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
@pytest.mark.parametrize("part", ["first", "last"])
def test_an_interrupted_load_leaves_nothing(file: GgufFile, kind: type[EmulatedDevice], part: str) -> None:
    def interrupt(done: int, total: int) -> None:
        if part == "first" or done == total:
            raise KeyboardInterrupt

    with kind() as device:
        with pytest.raises(KeyboardInterrupt):
            load_weights(device, file, list(file.tensors), interrupt)
        assert device.memory().allocated == 0


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
def test_buffers_of_a_load_that_failed_are_dead(
    file: GgufFile, kind: type[EmulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[DeviceAllocation] = []
    create = DeviceAllocation.__init__

    def note(allocation: DeviceAllocation, *arguments: Any) -> None:
        create(allocation, *arguments)
        created.append(allocation)

    def interrupt(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    monkeypatch.setattr(DeviceAllocation, "__init__", note)
    with kind() as device:
        with pytest.raises(KeyboardInterrupt):
            load_weights(device, file, list(file.tensors), interrupt)
        assert created
        assert not any(allocation.alive for allocation in created)


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
def test_a_launch_that_was_prepared_with_a_weight_that_is_replaced_is_refused(
    file: GgufFile, kind: type[EmulatedDevice]
) -> None:
    name, kept = "output_norm.weight", "blk.0.attn_norm.weight"
    with kind() as device:
        weights, launcher = load_weights(device, file, list(file.tensors)), Launcher(device, Modules(device))
        n = weights[name].k
        total = GpuBuffer.zeros(device, F32, (n,))
        plans = {each: launcher.prepare(Accumulate(n=n), total=total, x=weights[each].buffer) for each in (name, kept)}
        new = host_weight(device, name, np.ones(n, np.float32), "F32", (n,))
        weights.put({name: new}, [new.buffer])
        plans[kept]()
        with pytest.raises(LaunchError, match=r"x \(output_norm.weight f32\[\d+\]\) was freed"):
            plans[name]()
        weights.put({name: new}, [])  # the same again: nothing is replaced
        assert (weights.generation, weights[name].buffer.alive) == (1, True)
        weights.free()
        total.free()
        assert device.memory().allocated == 0


def test_weights_outlive_the_closed_file(tmp_path: Path, emulator: Device) -> None:
    path = tmp_path / "small.gguf"
    write_model(path, "llama", types=Q.Q8_0, layers=1)
    with GgufFile.open(path) as file:
        weights = load_weights(emulator, file, ["output_norm.weight"])
        expected = file.data("output_norm.weight").view(np.float32).copy()
    np.testing.assert_array_equal(weights["output_norm.weight"].buffer.to_numpy(), expected)


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
def test_a_file_that_becomes_shorter_while_it_is_loaded_is_an_error_that_leaves_nothing(
    kind: type[EmulatedDevice], tmp_path: Path
) -> None:
    path = write_model(tmp_path / "small.gguf", "llama", types=Q.Q8_0, layers=2)
    with GgufFile.open(path) as file, kind() as device:
        half = path.stat().st_size // 2
        with pytest.raises(ModelError, match="the file has become shorter since it was opened"):
            load_weights(device, file, list(file.tensors), lambda done, total: os.truncate(path, half))
        assert device.memory().allocated == 0


@pytest.mark.parametrize("kind", [EmulatedDevice, Copying])
def test_weights_are_what_they_were_whatever_becomes_of_the_file(kind: type[EmulatedDevice], tmp_path: Path) -> None:
    path = write_model(tmp_path / "small.gguf", "llama", types=Q.Q8_0, layers=1)
    with GgufFile.open(path) as file, kind() as device:
        weights = load_weights(device, file, list(file.tensors))
        before = {name: file.data(name) for name in file.tensors}
        path.write_bytes(b"")
        for name, weight in weights.items():
            assert weight.buffer.to_numpy().tobytes() == before[name].tobytes()


def test_a_name_that_is_not_there_names_the_nearest(file: GgufFile, emulator: Device) -> None:
    with pytest.raises(ModelError, match=r"no tensor blk\.0\.ffn_dwn\.weight; near: blk\.0\.ffn_down\.weight"):
        load_weights(emulator, file, ["blk.0.ffn_dwn.weight"])
    weights = load_weights(emulator, file, ["output_norm.weight"])
    with pytest.raises(ModelError, match=r"no weight is called output_nrm\.weight; near: output_norm\.weight"):
        weights["output_nrm.weight"]
    assert "output_nrm.weight" not in weights
    assert weights.get("output_norm.weight") is weights["output_norm.weight"]
