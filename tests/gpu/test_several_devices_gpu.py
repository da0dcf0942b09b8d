"""Kernels of several ranks on GPUs: all ranks on one GPU, in streams of their own, and on as many GPUs as there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from executor.device.cuda import CudaDevice
from executor.device.cuda_gpu import driver
from ptxgen.dsl.kernel_type import KernelType
from tests.executor.launch.ranks import launched
from tests.gpu.test_catalogue_gpu import assert_same_bits
from tests.ptxgen.kernels.catalogue import CASES
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

pytestmark = pytest.mark.gpu


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("spread", [False, True], ids=["one GPU", "all GPUs"])
@pytest.mark.parametrize("kernel", [case for case in CASES if case.launch().ranks > 1], ids=str)
def test_all_ranks_have_the_bits_of_the_emulator(kernel: KernelType, spread: bool, stack: ExitStack) -> None:
    gpus = int(driver().cuDeviceGetCount()[1])
    if spread and gpus < 2:
        pytest.skip("needs two GPUs")
    devices = [stack.enter_context(CudaDevice(r % gpus if spread else 0)) for r in range(kernel.launch().ranks)]
    arguments = inputs(kernel)
    results = launched(devices, kernel, arguments)
    emulated, _ = emulate(kernel, arguments, sanitize=False)
    assert_matches_reference(kernel, arguments, results)
    assert_same_bits(kernel, results, emulated)
