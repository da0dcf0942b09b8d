"""The words for what is no operand, no element, no index or no size: what it is, and what its author may have meant."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.dsl.refusals import LOAD, Place, Places
from ptxgen.dsl.value import Value
from ptxgen.errors import Location, TypeMismatch
from ptxgen.printable import excerpt
from ptxgen.types import U32

Where = Callable[[], Location]


def no_operand(instruction: str, given: object, where: Where) -> TypeMismatch:
    """The error of something that is neither a register nor a number."""
    hint = LOAD if isinstance(given, Place) else _as_python(given)
    return TypeMismatch(f"{instruction} takes registers and numbers, got {_described(given)}", where(), hint)


def no_register(method: str, given: object, where: Where) -> TypeMismatch:
    """The error of something that is no register where one is wanted."""
    number = isinstance(given, int | float) and not isinstance(given, bool)
    hint = "put a constant into a register: k.f32(1.0)" if number else LOAD if isinstance(given, Place) else _as_python(given)
    return TypeMismatch(f"{method} takes a register, got {_described(given)}", where(), hint)


def no_element(method: str, given: object, where: Where) -> TypeMismatch:
    """The error of something that is no element where one is wanted."""
    if isinstance(given, Places):
        hint = f"index it: x[{', '.join('ijklmn'[: len(given.shape)])}]"
        if len(given.shape) == 1:
            hint += "; its first element is x[0]"
    elif isinstance(given, Value):
        hint = "a register needs no load; an element is one of an array, k.arg.x[i], and comes first"
    else:
        hint = "an element is one of an array, k.arg.x[i], and comes first"
    return TypeMismatch(f"{method} takes an element of an array, got {_described(given)}", where(), hint)


def no_array(method: str, given: object, where: Where) -> TypeMismatch:
    """The error of something that is no array of the kernel where one is wanted."""
    return TypeMismatch(f"{method} takes an argument that is an array, got {_described(given)}", where(), "write k.arg.x")


def no_index(array: str, given: object, where: Where, wanted: str = "a u32 register or an int") -> TypeMismatch:
    """The error of something that is no index of an array."""
    if isinstance(given, Value) and given.type != U32:
        return TypeMismatch(f"an index of {array} must be u32, got {given.type}", where(), "convert with k.u32(...)")
    if isinstance(given, Value):  # where an int is wanted
        hint = "the element at a register is x.at(i)[0]"
    elif isinstance(given, Place):
        hint = LOAD
    elif isinstance(given, float):
        hint = "whole numbers divide with //; int(...) makes one of a float"
    elif isinstance(given, slice):
        hint = "the array that starts at an element is x.at(i)"
    elif isinstance(given, tuple | list):
        hint = "write the indices one by one: x[i, j], x.at(i, j)"
    else:
        hint = _as_python(given, whole=True) or "write an int or a register such as k.tid.x"
    return TypeMismatch(f"an index of {array} must be {wanted}, got {_described(given)}", where(), hint)


def no_size(given: object, where: Where) -> TypeMismatch:
    """The error of something that is no extent of an array in shared memory."""
    hint = _as_python(given, whole=True) or "write an int: a size is known while the kernel is being written"
    return TypeMismatch(f"a size of an array in shared memory must be an int, got {_described(given)}", where(), hint)


def no_vector(given: object, where: Where) -> TypeMismatch:
    """The error of something among the registers of a vector that is none."""
    hint = LOAD if isinstance(given, Place) else "put a constant into a register: k.f32(1.0)"
    return TypeMismatch(f"a vector is stored from registers, got {_described(given)}", where(), hint)


def _described(given: object) -> str:
    import numpy as np  # late: kernels are written without it

    if isinstance(given, Value):
        return f"the register {given.register} ({given.type})"
    if isinstance(given, np.generic):
        return f"the NumPy {type(given).__name__} {given.item()!r}"
    if isinstance(given, np.ndarray):
        return f"a NumPy array of shape {given.shape}"
    return str(given) if isinstance(given, Place) else excerpt(repr(given))


def _as_python(given: object, *, whole: bool = False) -> str:
    """The hint for what is nearly a number of Python; `whole` where that has to be an int."""
    import numpy as np

    number = "int(...)" if whole or isinstance(given, bool | np.bool_ | np.integer) else "float(...)"
    if isinstance(given, np.ndarray):
        return f"take one number out of it: {number.replace('...', 'array[i]')}"
    return f"write {number}" if isinstance(given, bool | np.generic) else ""
