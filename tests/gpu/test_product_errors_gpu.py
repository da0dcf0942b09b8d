"""Products of weights and rows of activations at the sizes of real models: as near to float64 as llama.cpp's tests ask, as its
own products are, and as their precision promises."""

from __future__ import annotations

import numpy as np
import pytest

from executor.device import Device
from executor.launch.launch import Launcher
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import FORMATS
from tests.gpu.launching import launcher_on
from tests.ptxgen.kernels.product_errors import ACCURATE_NMSE, AS_GOOD, MOST_NMSE, Product, products

pytestmark = pytest.mark.gpu

N = 257
COMMON = ("Q4_K", "Q6_K")
"""The formats of the models that most people run, tried at more shapes."""
SHAPES = [(name, 4096, m) for name in FORMATS for m in ((*range(1, 10), 64, 512) if name in COMMON else (1, 5, 9, 64))]
SHAPES += [(name, 14336, m) for name in COMMON for m in (1, 2, 8, 64, 512)]


@pytest.fixture(scope="module")
def launcher(gpu: Device) -> Launcher:
    return launcher_on(gpu)


def run(launcher: Launcher, kernel: KernelType, product: Product) -> np.ndarray:
    arguments = product.arguments(kernel)
    buffers = {
        name: GpuBuffer.from_numpy(launcher.device, arguments[name], array.dtype, name)
        for name, array in kernel.signature().items()
        if isinstance(array, Array)
    }
    try:
        launcher(kernel, **buffers)
        return buffers["y"].to_numpy()
    finally:
        for buffer in buffers.values():
            buffer.free()


@pytest.mark.parametrize(("name", "k", "m"), SHAPES)
def test_products_of_a_models_size_keep_what_their_precision_promises(name: str, k: int, m: int, launcher: Launcher) -> None:
    product = Product(FORMATS[name], k, N, m)
    theirs = product.error(product.llama_cpp)
    for precision, kernel in products(FORMATS[name], k, N, m):
        if not kernel.runs_on(launcher.device.target):
            continue
        most = ACCURATE_NMSE if precision == "accurate" else min(MOST_NMSE, AS_GOOD * theirs)
        assert product.error(run(launcher, kernel, product)) <= most, str(kernel)
