"""What every kernel type must pass, ours or a stranger's: `check` runs it all, and `ptxgen conform` and pytest (testing.py) are
its faces. The checks are in shape_checks.py and type_checks.py; how a kernel is run for them is in execution.py."""

from ptxgen.conformance.report import Check, Report, Result, check, planned
from ptxgen.errors import Nonconformity

__all__ = ["Check", "Nonconformity", "Report", "Result", "check", "planned"]
