"""The kernel that each precision uses for a format by default, the error that it allows, and, of a kernel, the parameters that
leave its bits alone and whether it has a form for several rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executor.base.environment import PRECISIONS
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.compose import for_rows
from ptxgen.kernels.gemv.hw_dp4a import PLAIN, HwDp4aGemv
from ptxgen.kernels.gemv.mwv import MwvGemv
from ptxgen.kernels.registry import find, name_of

DIGITS: Final = {"accurate": 3, "fast": 1}
"""Int8 planes of an activation, by precision. Three are f32's own level; two are off by 2e-5 (KernelType.accuracy)."""
ERROR_LIMIT: Final = {"accurate": 1e-5, "fast": 2e-2}
"""The largest root mean square error of a dot product, relative to its own, that a kernel of a precision may have in any
situation of KernelType.accuracy. One plane has 5e-3 to 1.3e-2."""


@dataclass(frozen=True)
class Strategy:
    """A kernel by its registered name, the parameters that its bits depend on, and why it is used."""

    kernel: str
    parameters: Mapping[str, Any]
    reason: str

    def make(self, k: int, n: int, **free: Any) -> KernelType:
        """The kernel for n rows of k weights; `free` are parameters that leave the bits alone."""
        return find(self.kernel).make(k=k, n=n, **self.parameters, **free)


def default_strategy(format: Format, precision: str) -> Strategy:
    """What multiplies weights of a format by a vector on every device unless the user has it otherwise: so the same model has
    the same bits everywhere."""
    require_precision(precision)
    if not format.packed_width:
        return Strategy(name_of(MwvGemv, format=format, m=None), {}, f"{format.name} has no integer codes, so f32 activations")
    digits = DIGITS[precision]
    reason = f"{precision}: {digits} int8 plane{'s' if digits > 1 else ''} of the activations"
    return Strategy(name_of(HwDp4aGemv, format=format, **PLAIN), {"digits": digits}, reason)


def bit_free(kernel: str) -> tuple[str, ...]:
    """The parameters of a registered kernel that leave its bits alone."""
    return find(kernel).type.bit_free


def of_shape(kernel: str) -> tuple[str, ...]:
    """Of those, the ones that hold for the shape alone for which they were measured."""
    return find(kernel).type.of_shape


def has_form_for_rows(kernel: KernelType, *, alike: bool = False) -> bool:
    """Whether a kernel of one row of activations has a form for several; `alike`: one in which a row has the bits that it has
    alone."""
    return bool(for_rows(kernel, 2)) and (kernel.batched_alike or not alike)


def require_precision(precision: str) -> None:
    """ArgumentError unless this is the name of a precision."""
    if precision not in PRECISIONS:
        raise ArgumentError(f"precision is {precision!r}; known: {', '.join(PRECISIONS)}")
