"""Static checks of a finished function. How a program flows is in cfg.py, what differs between threads in divergence.py."""

from __future__ import annotations

from ptxgen.ir import Function
from ptxgen.target import Target


def verify(function: Function, target: Target) -> None:
    """Raise VerifyError for the first rule that the function breaks."""
