"""A chain in which each GEMV reads what the kernel before it has just written: what goes wrong if one that a graph makes
dependent does not wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from executor.device import Device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.types import F32, S8, S32

STEPS = 4


def results(device: Device, kernel: HwDp4aGemv, *, dependent: bool, replays: int = 1) -> list[bytes]:
    """The bytes of y after each replay of a chain of STEPS times: other activations to digits, digits times weights to y.
    `dependent`: the kernels are dependent, in one graph; else they are launched one by one. Random arguments, the same each
    time."""
    rng = np.random.default_rng(7)
    launcher = Launcher(device, Modules(device))
    kernel = replace(kernel, pdl=dependent)
    given, quantize = kernel.inputs(rng), Quantize(count=kernel.digits, n=kernel.k, rows=kernel.activation_rows)
    y = GpuBuffer.zeros(device, F32, kernel.signature()["y"].shape, "y")  # type: ignore[union-attr]
    w = GpuBuffer.from_numpy(device, given["w"], name="w")
    blocks = (kernel.activation_rows, kernel.k // 32)
    made = {
        "digits": GpuBuffer.empty(device, S8, (kernel.activation_rows, kernel.digits, kernel.k)),
        "scales": GpuBuffer.empty(device, F32, blocks),
        "sums": GpuBuffer.empty(device, S32, blocks),
    }
    plans: list[Plan] = []
    for step in range(STEPS):
        x = rng.standard_normal((kernel.activation_rows, kernel.k), np.float32)
        plans.append(launcher.prepare(quantize, x=GpuBuffer.from_numpy(device, x, name=f"x {step}"), **made))
        plans.append(launcher.prepare(kernel, y=y, w=w, **made))
    run: Sequence[Callable[[], None]] = [LaunchGraph(launcher.device, plans).replay] if dependent else plans
    found = []
    for _ in range(replays):
        for launch in run:
            launch()
        found.append(y.to_numpy().tobytes())
    return found
