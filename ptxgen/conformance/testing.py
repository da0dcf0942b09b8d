"""The kit's face in pytest, for the tests of any package. One line makes a test of every check of every shape:

test_my_kernels = conformance_test("my_q4k_gemv")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from ptxgen.conformance.report import Check, Subject, planned
from ptxgen.errors import PtxGenError


def conformance_test(*subjects: Subject) -> Callable[[Check], None]:
    """A test function, parametrised by kernel and check; of all registered kernels if none is named."""
    return checks_test(planned(*subjects))


def checks_test(checks: Iterable[Check]) -> Callable[[Check], None]:
    """A test function, parametrised by these checks."""

    @pytest.mark.parametrize("check", list(checks), ids=str)
    def test_conforms(check: Check) -> None:
        try:
            check()
        except PtxGenError as error:
            pytest.fail("\n".join([str(error), *getattr(error, "__notes__", ())]), pytrace=False)

    return test_conforms
