"""Which NumPy type holds the elements of a PTX type in memory, and the other way. Separate from types.py, which must not import
NumPy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ptxgen.errors import ArgumentError
from ptxgen.types import ALL, B128, BF16, PRED, TF32, DType


def _letter(dtype: DType) -> str:
    if dtype.is_float and dtype.lanes == 1 and dtype is not BF16:  # NumPy has neither bf16 nor pairs: their bits
        return "f"
    return "i" if dtype.is_signed else "u"


NUMPY: Final[dict[DType, np.dtype[Any]]] = {
    dtype: np.dtype(f"{_letter(dtype)}{dtype.bytes}") for dtype in ALL if dtype not in (B128, TF32, PRED)
}
FROM_NUMPY: Final[dict[np.dtype[Any], DType]] = {
    numpy: dtype for dtype, numpy in NUMPY.items() if dtype.is_integer or numpy.kind == "f"
}
"""The types that NumPy has, too; of all others it holds the bits."""


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds elements of `dtype`; bf16 and packed pairs as unsigned bits."""
    if not isinstance(dtype, DType):
        raise ArgumentError(f"dtype is {dtype!r}; must be a type of ptxgen.types, such as ptxgen.types.F32")
    if dtype not in NUMPY:
        raise ArgumentError(f"{dtype} cannot be stored in a buffer; it can hold {', '.join(t.name for t in NUMPY)}")
    return NUMPY[dtype]
