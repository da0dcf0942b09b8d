"""The GEMV that adds to the stream has the bits of the GEMV and the addition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.registry import find
from tests.ptxgen.kernels.running import emulate


def result(kernel: KernelType, name: str, **arguments: Any) -> NDArray[Any]:
    results, findings = emulate(kernel, arguments)
    assert not findings
    return results[name]


@pytest.mark.parametrize(("digits", "k", "n"), [(1, 2048, 5), pytest.param(3, 4096, 2, marks=pytest.mark.slow)])
def test_the_bits_are_those_of_the_gemv_and_the_addition(digits: int, k: int, n: int) -> None:
    kernel = find("hw_dp4a_q6k_gemv_residual").make(k=k, n=n, digits=digits)
    given = kernel.inputs(np.random.default_rng(3))
    product = result(find("hw_dp4a_q6k_gemv").make(k=k, n=n, digits=digits), "y", **given)
    added = result(find("residual_add").make(n=n), "x", x=given["y"], delta=product)
    np.testing.assert_array_equal(result(kernel, "y", **given).view(np.uint32), added.view(np.uint32))
