"""What every kernel of the catalogue must do, for every sample case that it names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxgen.assemble import assemble
from ptxgen.kernels.kernel_type import KernelType
from ptxgen.module import emit
from ptxgen.target import ALL
from tests.kernels.catalogue import CANONICAL, CASES
from tests.kernels.running import assert_matches_reference, emulate, inputs

# Kernels that may spill, by name, each with the reason.
MAY_SPILL: dict[str, str] = {}

every_case = pytest.mark.parametrize("kernel", CASES, ids=str)


@every_case
def test_kernel_is_right_and_clean_and_the_same_bits_for_any_warp_order(kernel: KernelType) -> None:
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments, seed=1)
    assert not findings, "\n".join(map(str, findings))
    assert_matches_reference(kernel, arguments, results)
    again, findings = emulate(kernel, arguments, seed=2)
    assert not findings, "\n".join(map(str, findings))
    for name, values in results.items():
        assert np.array_equal(values.view(np.uint8), again[name].view(np.uint8)), f"{name} depends on the order of warps"


@every_case
def test_kernel_assembles_for_every_target_without_spills(kernel: KernelType) -> None:
    for target in ALL:
        assembled = assemble(emit(kernel, target).text, target)
        if kernel.name not in MAY_SPILL:
            assert assembled.spill_stores == assembled.spill_loads == 0, f"{kernel} spills on {target}"


@every_case
def test_kernel_text_is_ascii_and_the_same_bytes_every_time(kernel: KernelType) -> None:
    text = emit(kernel, lines=True).text
    assert text.isascii()
    assert emit(kernel, lines=True).text == text


@pytest.mark.parametrize("kernel", CANONICAL, ids=lambda kernel: kernel.name)
def test_kernel_text_is_the_golden_text(kernel: KernelType, golden: Callable[[str, str], None]) -> None:
    golden(f"ptx/{kernel.name}.ptx", emit(kernel).text)
