"""A norm that is left to its readers is refused to a reader that would make other numbers of it: launches are named here, and
none runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from executor.base.errors import LaunchError
from executor.choice.choice import Fusions
from executor.device import open_devices
from executor.layers.activations import Activations
from executor.layers.calls import LaunchQueue, Recorder
from executor.layers.gather import gather_norm
from executor.layers.gemv import NextNorm, project, project_onto_and_leave_norm
from executor.layers.projection import Projection
from executor.layers.shape import LayerShape
from executor.layers.transformer import normalise
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from executor.memory.workspace import Workspace
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.digit_gemv_type import Int8GemvType
from ptxgen.kernels.gemv.dp4a import Dp4aGemv
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.types import U8

Q4_K = FORMATS["Q4_K"]
K = 256
ABLE = HwDp4aGemv(Q4_K, k=K, n=K, digits=3)
ONE_DIGIT = HwDp4aGemv(Q4_K, k=K, n=K, digits=1)
UNABLE = Dp4aGemv(Q4_K, k=K, n=K, digits=3)
SHARED = LayerShape(K, K, heads=4, kv_heads=2, head_dim=64, rms_eps=1e-5, rope_style="neox", rope_dim=64, ranks=2)


def projection(launch: LaunchQueue, kernel: Int8GemvType) -> Projection:
    blocks = launch.packed.workspace.buffer(kernel.name, (kernel.n, kernel.format.row_bytes(kernel.k)), U8)
    return Projection(LoadedWeight(kernel.name, blocks, Q4_K, kernel.n, kernel.k), kernel, "test", Fusions(normed=True))


def vector(launch: LaunchQueue, name: str) -> GpuBuffer:
    return launch.packed.workspace.buffer(name, (K,))


def leave_in_three_digits_to(reader: Int8GemvType) -> None:
    """A product leaves a norm to readers of three digits that can complete it, and then this one comes."""
    with open_devices(["emulator"]) as device:
        launch = Recorder(Workspace(device))
        x, stream, normed, y, gamma = (vector(launch, name) for name in ("x", "stream", "normed", "y", "gamma"))
        before, expected = projection(launch, ABLE), NextNorm(gamma, (projection(launch, ABLE),))
        project_onto_and_leave_norm(launch, "down", before, expected, 1e-5, x=x, stream=stream, normed=normed)
        project(launch, "gate", projection(launch, reader), x=normed, y=y)


def test_a_reader_of_other_digits_is_refused() -> None:
    leave_in_three_digits_to(ABLE)
    with pytest.raises(LaunchError, match="gate reads 1 digits of a norm that was left to its readers in 3 digits"):
        leave_in_three_digits_to(ONE_DIGIT)


def test_a_reader_that_cannot_complete_it_is_refused() -> None:
    with pytest.raises(LaunchError, match=f"gate: {UNABLE.name}.* cannot complete the norm that was left to it"):
        leave_in_three_digits_to(UNABLE)


def test_another_norm_of_a_stream_of_which_one_was_gathered_alone_is_refused() -> None:
    with open_devices(["emulator"] * 2) as device:
        launch = Recorder(Workspace(device))
        a = Activations.of(launch.packed.workspace, SHARED)
        one, other = vector(launch, "one gamma"), vector(launch, "other gamma")
        readers = (projection(launch, ABLE),)
        gather_norm(launch, "down", a.stream, a.hidden, 3, normed=a.normed, gamma=one, eps=SHARED.rms_eps)
        normalise(launch, "one_norm", SHARED, a, one, readers)
        with pytest.raises(LaunchError, match=r"other_norm is of .*hidden.*, of which another norm was gathered alone"):
            normalise(launch, "other_norm", SHARED, a, other, readers)


def test_python_without_asserts_refuses_it_too() -> None:
    script = f"import {__name__} as it; it.leave_in_three_digits_to(it.UNABLE)"
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False)
    assert f"executor.base.errors.LaunchError: gate: {UNABLE.name}" in done.stderr
