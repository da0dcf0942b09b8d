"""The spellings of the types that a buffer can hold: ptxgen's own, names, and the types of NumPy and PyTorch. Which NumPy type
holds a type's elements is arrays.py's business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from ptxgen.arrays import FROM_NUMPY, NUMPY, numpy_dtype
from ptxgen.errors import ArgumentError
from ptxgen.printable import excerpt
from ptxgen.types import BF16, F16, F32, F64, S8, S16, S32, S64, DType

DTypeLike: TypeAlias = object
"""What `dtype_of` takes. (An object to type checkers: PyTorch's types can be named only where PyTorch is installed.)"""

_NUMPYS: Final = {dtype: (numpy.name,) for numpy, dtype in FROM_NUMPY.items()}
_OTHERS: Final[Mapping[DType, tuple[str, ...]]] = {
    **{signed: (f"i{signed.bits}",) for signed in (S8, S16, S32, S64)},
    F16: ("half",),
    F32: ("single",),
    F64: ("double",),
    BF16: ("bfloat16",),
}
NAMES: Final[Mapping[DType, tuple[str, ...]]] = {
    dtype: (dtype.name, *_NUMPYS.get(dtype, ()), *_OTHERS.get(dtype, ())) for dtype in NUMPY
}
"""By type, its names: ptxgen's, NumPy's and others. A number in a name counts bits. What libraries do not agree on is none:
"float" is 64 bits in NumPy and 32 in PyTorch."""
_BY_NAME: Final = {name: dtype for dtype, names in NAMES.items() for name in names}


def dtype_of(spelling: DTypeLike, name: str = "dtype") -> DType:
    """The PTX type of elements of a buffer.

    spelling: a type of ptxgen.types, one of NAMES in any case ("f32", "float32", "i8", "half"), a NumPy type or scalar class in
    native byte order (np.float32, np.dtype("<f4"); Python's float and int are those of 64 bits, as for NumPy), or a PyTorch
    type (torch.float32). The string "i8" has 8 bits, as "s8"; np.dtype("i8") has the 64 that NumPy means. Raises ArgumentError
    for anything else and for a type that no buffer can hold; `name` says what was given."""
    if isinstance(spelling, DType):
        numpy_dtype(spelling)
        return spelling
    dtype = _BY_NAME.get(_plain_name(spelling))
    if dtype is None:
        shown = excerpt(" ".join(repr(spelling).split()), 80)
        raise ArgumentError(f"{name} is {shown}; allowed: {_ALLOWED}")
    return dtype


def _plain_name(spelling: object) -> str:
    """As it may stand in NAMES; empty for what has no name there."""
    if isinstance(spelling, str):
        return spelling.lower()
    if f"{type(spelling).__module__}.{type(spelling).__qualname__}" == "torch.dtype":
        return str(spelling).removeprefix("torch.")
    if not isinstance(spelling, np.dtype | type):
        return ""
    try:
        dtype: np.dtype[Any] = np.dtype(spelling)
    except (TypeError, ValueError):
        return ""
    return dtype.name if dtype.isnative else ""


_ALLOWED: Final = (
    ", ".join(names[0] + (f" ({', '.join(names[1:])})" if names[1:] else "") for names in NAMES.values())
    + "; or the type of ptxgen.types, NumPy or PyTorch that has such a name"
)
