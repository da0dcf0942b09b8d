"""A position or a length as a kernel argument: by value, or in a one-element buffer that the kernel reads, so that a captured
graph serves every position. Not the check of its range: a value from a buffer is checked by nobody but the kernel."""

from __future__ import annotations

from ptxgen.dsl.arguments import Argument, Scalar, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.types import U32


def position_argument(indirect: bool, low: int, high: int) -> Argument:
    """u32 from `low` to `high` (inclusive), or a buffer u32[1] that holds it."""
    return read(U32, 1, align=4) if indirect else Scalar(U32, low, high)


def position_value(k: KernelBuilder, name: str, indirect: bool) -> Value:
    """The register that holds the argument called `name`; the same in every thread."""
    argument = getattr(k.arg, name)
    value: Value = k.load(argument[0]) if indirect else argument
    return value
