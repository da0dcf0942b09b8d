"""What a kernel prints on a GPU is on stdout once the host has waited for it, and is what the emulator prints."""

from __future__ import annotations

import pytest

from tests.cli.invoke import python

pytestmark = pytest.mark.gpu

PRINTS = """
import sys
import numpy as np
from executor.device import open_device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.types import F32

class Prints(AddInPlace):
    name = "test_prints"

    def emit(self, k):
        i = k.ctaid.x * 256 + k.tid.x
        with k.when((i & 15) == 3):
            k.print("%u: %6.2f %lld %#x %c %d%%\\n", i, k.f32(i) * -1.5, k.s64(i) - 10, i, 65, i > 20)
        with k.when(i == 0):
            k.print("none\\n")

with open_device(sys.argv[1]) as device:
    kernel = Prints(n=64)
    launcher = Launcher(device, Modules(device, limit_bytes=0))
    zeros = np.zeros(64, np.float32)
    launcher(kernel, **{name: GpuBuffer.from_numpy(device, zeros, F32) for name in kernel.signature()})
    device.synchronize()
    print("waited", flush=True)
"""


def test_a_gpu_prints_what_the_emulator_prints_before_the_wait_ends() -> None:
    printed = {}
    for device in ("cuda", "emulator"):
        ran = python(f"import sys; sys.argv = ['', {device!r}]\n{PRINTS}")
        assert ran.returncode == 0, ran.stderr
        lines = ran.stdout.splitlines()
        assert lines[-1] == "waited"
        printed[device] = sorted(lines[:-1])
    assert len(printed["emulator"]) == 17  # every sixteenth of the 256 threads of a block, and one
    assert printed["cuda"] == printed["emulator"]
