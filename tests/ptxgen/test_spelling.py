"""The types of a buffer's elements are known by every usual spelling; what is none, or means two things, is refused with the
list of those that are allowed."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.arrays import FROM_NUMPY, NUMPY
from ptxgen.errors import ArgumentError
from ptxgen.spelling import NAMES, dtype_of
from ptxgen.types import B128, BF16, BF16X2, F16, F32, F64, PRED, S8, S16, S32, S64, TF32, U8, U16, U32, U64, DType


class dtype:
    """PyTorch's class of types, which is known by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


dtype.__module__ = "torch"

SPELLINGS: list[tuple[object, DType]] = [
    *((spelling, F32) for spelling in (F32, "f32", "float32", "F32", "single", np.float32, np.dtype("<f4"), dtype("float32"))),
    *((spelling, F16) for spelling in (F16, "f16", "float16", "half", np.half, np.dtype("float16"), dtype("float16"))),
    *((spelling, F64) for spelling in (F64, "f64", "double", np.float64, float, dtype("float64"))),
    *((spelling, S8) for spelling in (S8, "s8", "i8", "int8", np.int8, np.dtype("i1"), dtype("int8"))),
    *((spelling, U8) for spelling in (U8, "u8", "uint8", np.uint8, dtype("uint8"))),
    *((spelling, S32) for spelling in ("s32", "i32", "int32", np.int32, np.intc, dtype("int32"))),
    *((spelling, S64) for spelling in ("i64", "int64", np.int64, np.dtype("i8"), int)),
    *((spelling, BF16) for spelling in (BF16, "bf16", "bfloat16", dtype("bfloat16"))),
    *zip(("int16", "uint16", "uint32", "uint64", "bf16x2"), (S16, U16, U32, U64, BF16X2), strict=True),
]


@pytest.mark.parametrize(("spelling", "expected"), SPELLINGS, ids=str)
def test_a_usual_spelling_is_known(spelling: object, expected: DType) -> None:
    assert dtype_of(spelling) is expected


@pytest.mark.parametrize(
    "spelling",
    ["float", "int", "f33", "", "f4", "<f4", "bool", bool, np.complex64, np.dtype(">f4"), object, str, "torch.float32",
     dtype("complex64"), None, 32, 1.5, [F32], np.zeros(3, np.float32), np.dtype([("a", "f4")])],
    ids=str,
)  # fmt: skip
def test_what_is_no_type_or_means_two_is_refused_with_all_that_are_allowed(spelling: object) -> None:
    with pytest.raises(
        ArgumentError, match=r"^the type is .*; allowed: u8 \(uint8\), .*f16 \(float16, half\), .*NumPy or PyTorch"
    ) as told:
        dtype_of(spelling, "the type")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("unstored", [PRED, B128, TF32])
def test_a_type_that_memory_cannot_hold_is_refused(unstored: DType) -> None:
    with pytest.raises(ArgumentError, match=f"{unstored} cannot be stored in a buffer"):
        dtype_of(unstored)
    with pytest.raises(ArgumentError, match=f"'{unstored}'; allowed: u8"):
        dtype_of(unstored.name)


def test_a_name_has_one_meaning_and_every_type_has_its_own() -> None:
    names = [name for some in NAMES.values() for name in some]
    assert len(names) == len(set(names))
    assert [dtype_of(one.name) for one in NUMPY] == list(NUMPY)
    assert all(dtype_of(numpy.name) is one for numpy, one in FROM_NUMPY.items())
