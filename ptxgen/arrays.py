"""Which NumPy type holds the elements of a PTX type in memory. Separate from types.py, which must not import NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.errors import ArgumentError
from ptxgen.types import BY_NAME, DType

NUMPY: dict[DType, np.dtype[Any]] = {
    **{BY_NAME[name]: np.dtype(f"uint{name[1:]}") for name in ("u8", "u16", "u32", "u64", "b8", "b16", "b32", "b64")},
    **{BY_NAME[name]: np.dtype(f"int{name[1:]}") for name in ("s8", "s16", "s32", "s64")},
    **{BY_NAME[name]: np.dtype(f"float{name[1:]}") for name in ("f16", "f32", "f64")},
    BY_NAME["bf16"]: np.dtype("uint16"),  # NumPy has none: the bits
    BY_NAME["f16x2"]: np.dtype("uint32"),
    BY_NAME["bf16x2"]: np.dtype("uint32"),
}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds elements of `dtype`; bf16 and packed pairs as unsigned bits."""
    if not isinstance(dtype, DType):
        raise ArgumentError(f"dtype is {dtype!r}; must be a type of ptxgen.types, such as ptxgen.types.F32")
    if dtype not in NUMPY:
        raise ArgumentError(f"{dtype} cannot be stored in a buffer; it can hold {', '.join(t.name for t in NUMPY)}")
    return NUMPY[dtype]
