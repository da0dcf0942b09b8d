"""persistent_layer on a GPU: the bits of its kernels one by one, alone and in whole models, again and again, early or not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.choice.persistent import PersistentGrid
from executor.device import Device
from executor.device.gpu import GpuModel
from executor.launch.graph import LaunchGraph
from executor.memory.buffers import GpuBuffer
from executor.model.generation import LanguageModel
from ptxgen.arrays import numpy_dtype
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from tests.gpu.launching import launcher_on
from tests.ptxgen.kernels.layer_steps import Arrays, one_by_one
from tests.ptxgen.kernels.running import inputs
from tests.switched import switched
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.gpu
REPLAYS = 50
CONTEXT = 256
MIXED = "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K"
LAYER = partial(PersistentLayer, blocks=1)  # as many as the GPU has multiprocessors, once it is fitted
LAYERS = {
    "1b": LAYER(2048, 2048, 8192, *MIXED, queries=2048, keys=512),
    "qwen2.5-7b": LAYER(3584, 3584, 18944, *MIXED, queries=3584, keys=512),
    "q8_0": LAYER(4096, 4096, 14336, "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", queries=4096, keys=1024),
    "last": LAYER(1536, 1536, 8960, "Q4_K", "Q4_K", "Q4_K"),
}


def buffers(device: Device, kernel: KernelType, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments on the device; zeros for those that are not given."""
    on_device: dict[str, Any] = {}
    for name, argument in kernel.signature().items():
        if not isinstance(argument, Array):
            on_device[name] = float(given[name])
            continue
        value = given.get(name, np.zeros(argument.shape, numpy_dtype(argument.dtype)))
        on_device[name] = GpuBuffer.from_numpy(device, np.ascontiguousarray(value).reshape(argument.shape))
    return on_device


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_the_bits_of_its_kernels_one_by_one(name: str, gpu: Device) -> None:
    kernel = PersistentGrid.of(gpu.target, GpuModel.of(gpu).multiprocessors).fitted(partial(replace, LAYERS[name]))
    given, launcher = inputs(kernel), launcher_on(gpu)

    def on_gpu(one: KernelType, some: dict[str, Any]) -> Arrays:
        arguments = buffers(gpu, one, some)
        launcher.prepare(one, **arguments)()
        return {name: value.to_numpy() for name, value in arguments.items() if isinstance(value, GpuBuffer)}

    expected, arguments = one_by_one(kernel, given, on_gpu), buffers(gpu, kernel, given)
    plans = {"alone": launcher.prepare(kernel, **arguments)}
    if gpu.target.sm >= 90:
        plans["dependent"] = launcher.prepare_dependent(kernel, **arguments)
    for how, plan in plans.items():
        graph = LaunchGraph(gpu, [plan])
        for _ in range(REPLAYS):
            arguments["x"].upload(given["x"])
            graph.replay()
            for result, value in expected.items():
                assert arguments[result].to_numpy().tobytes() == value.tobytes(), f"{result}, {how}"
            assert not arguments["arrivals"].to_numpy().any()


@pytest.mark.parametrize("dependent", [False, True])
def test_a_model_of_many_layers_gives_the_tokens_and_logits_of_launches_one_by_one(
    dependent: bool, gpu: Device, tmp_path: Path
) -> None:  # fmt: skip
    if dependent and gpu.target.sm < 90:
        pytest.skip("programmatic dependent launch needs sm_90")
    types = {"attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "": Q.Q4_K}
    path = write_model(
        tmp_path / "m.gguf", "llama", types, layers=16, hidden=1024, heads=8, kv_heads=4, ff=2816, context=CONTEXT
    )
    found = []
    for persistent in (False, True):
        profile = switched(GpuProfile(), dependent_launches=dependent, persistent_layers=persistent)
        with LanguageModel.load(path, gpu, context=CONTEXT, profile=profile) as model:
            logits = []
            for token in range(CONTEXT // 2):
                model.decoder.step(token)
                logits.append(model.decoder.logits().tobytes())
            found.append(logits)
    assert found[0] == found[1]
