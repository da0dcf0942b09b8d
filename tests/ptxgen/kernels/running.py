"""How a test runs a kernel type: the conformance kit's way (ptxgen/conformance/execution.py)."""

from ptxgen.conformance.execution import compare as assert_matches_reference
from ptxgen.conformance.execution import emulate, inputs

__all__ = ["assert_matches_reference", "emulate", "inputs"]
