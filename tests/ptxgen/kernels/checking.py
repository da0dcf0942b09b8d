"""One launch under the sanitiser that must be clean, for the tests of a family of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import KernelType
from tests.ptxgen.kernels.running import assert_matches_reference, emulate


def run(kernel: KernelType, arguments: Mapping[str, Any], *, seed: int | None = None) -> dict[str, NDArray[Any]]:
    """The `out` and `inout` arrays after a launch on copies of the arguments. Fails with the sanitiser's findings."""
    results, findings = emulate(kernel, arguments, seed=seed)
    assert not findings, "\n".join(map(str, findings))
    return results


def check(kernel: KernelType, arguments: Mapping[str, Any], *, seed: int | None = None) -> dict[str, NDArray[Any]]:
    """As `run`, and compared with the reference within the kernel's own tolerance."""
    results = run(kernel, arguments, seed=seed)
    assert_matches_reference(kernel, arguments, results)
    return results
