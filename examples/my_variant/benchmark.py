"""Times kernels on a GPU over weights that no cache holds: python benchmark.py K N NAME..."""

import sys

import numpy as np

from executor.device import open_device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.kernels.registry import find

k, n = map(int, sys.argv[1:3])
with open_device("cuda") as device:
    launcher = Launcher(device, Modules(device))
    for kernel in [find(name).make(k=k, n=n) for name in sys.argv[3:]]:
        given, arrays = kernel.inputs(np.random.default_rng(1)), kernel.signature()
        copies = range(1 + 512 * 2**20 // kernel.work().bytes)  # together larger than any L2
        plans = [
            launcher.prepare(kernel, **{name: GpuBuffer.from_numpy(device, given[name], arrays[name].dtype) for name in arrays})
            for _ in copies
        ]
        for plan in plans[:20]:
            plan()
        start = device.record()
        for plan in plans:
            plan()
        seconds = device.elapsed(start, device.record()) / len(plans)
        print(f"{kernel}: {seconds * 1e6:.2f} us, {kernel.work().bytes / seconds / 1e9:.0f} GB/s")
        for plan in plans:
            for buffer in plan.arguments.values():
                buffer.free()
