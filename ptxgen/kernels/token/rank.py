"""The rank of an f32: a u32 that is smaller for a larger value, so that values are compared as whole numbers are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.types import F32, S32, U32


def rank_of(k: KernelBuilder, x: Value) -> Value:
    """u32, smaller for a larger f32; that of -0 is one more than that of +0, and nothing but a NaN has 0."""
    sign = k.bits(k.bits(x, S32) >> 31, U32)
    return k.bits(x, U32) ^ (~sign & 0x7FFFFFFF)


def value_of(k: KernelBuilder, rank: Value) -> Value:
    """The f32 of a rank."""
    sign = k.bits(k.bits(rank, S32) >> 31, U32)
    return k.bits(rank ^ (~sign & 0x7FFFFFFF), F32)


def ranks_of(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """`rank_of` of an array."""
    return np.where(np.signbit(x), x.view(np.uint32), x.view(np.uint32) ^ np.uint32(0x7FFFFFFF))
