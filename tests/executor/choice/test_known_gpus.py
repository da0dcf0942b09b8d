"""What is chosen by default for products of known GPUs, none of which is here: it assembles for their targets, spills nothing,
fits a block of theirs, and on the emulator it is right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest

from executor.choice.choice import GpuProfile
from executor.device.gpu import GpuModel
from executor.layers.batched import launched
from ptxgen.conformance.execution import compare, emulate, inputs
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.formats import FORMATS
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.machine_code import faults
from ptxgen.toolchain.module import emit

GPUS = {
    "t4": GpuModel("Tesla T4", "sm_75", 40),
    "a100": GpuModel("NVIDIA A100-SXM4-80GB", "sm_80", 108),
    "rtx-3090": GpuModel("NVIDIA GeForce RTX 3090", "sm_86", 82),
    "rtx-4090": GpuModel("NVIDIA GeForce RTX 4090", "sm_89", 128),
    "b200": GpuModel("NVIDIA B200", "sm_100", 148),
    "rtx-5090": GpuModel("NVIDIA GeForce RTX 5090", "sm_120", 170),
}
SHAPES = ((2048, 8192), (4096, 1024), (14336, 4096))
"""k and n of matrices of the 1B and the 8B."""
ROWS = (1, 8, 32, 512)
SPILLED = ["32 bytes are spilled (255 registers)"]
"""Of `mma` for Q8_0 in tiles of 32, before sm_90: with tiles of 16 weights would be unpacked twice as often."""
EACH_GPU = pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))


@cache
def chosen(gpu: GpuModel, shapes: tuple[tuple[int, int], ...], rows: tuple[int, ...]) -> tuple[KernelType, ...]:
    """Each kernel that is launched, once."""

    def found() -> Iterator[KernelType]:
        profile = GpuProfile.for_gpu(gpu, Target.parse(gpu.target))
        for name, (k, n), m in product(("Q4_K", "Q6_K", "Q8_0"), shapes, rows):
            kernel = profile.choose(profile.at_load(FORMATS[name], k), k, n, rows=m).kernel
            yield from (form for form, _ in launched(kernel, m))

    return tuple(dict.fromkeys(found()))


@EACH_GPU
def test_what_is_chosen_fits_a_block(gpu: GpuModel) -> None:
    assert all(kernel.fits(Target.parse(gpu.target)) for kernel in chosen(gpu, SHAPES, ROWS))


@pytest.mark.slow
@EACH_GPU
def test_what_is_chosen_assembles_and_spills_nothing(gpu: GpuModel) -> None:
    target = Target.parse(gpu.target)
    for kernel in chosen(gpu, SHAPES, ROWS):
        assembled = assemble(emit(kernel, target).text, target)
        wrong = faults(assembled, kernel.launch().threads, kernel.most_code)
        known = target.sm < 90 and kernel.name == "mma_q8_0_aligned_gemm" and wrong == SPILLED
        assert not wrong or known, (str(kernel), wrong)


@pytest.mark.slow
@EACH_GPU
def test_what_is_chosen_of_a_small_product_is_right_on_the_emulator(gpu: GpuModel) -> None:
    target = Target.parse(gpu.target)
    for kernel in chosen(gpu, ((512, 48),), (1, 8)):
        arguments = inputs(kernel)
        results, findings = emulate(kernel, arguments, seed=1, target=target, tight=True)
        assert not findings
        compare(kernel, arguments, results)
