"""`buffer`, `empty` and `zeros` take shapes and types as users of NumPy, CuPy and PyTorch write them, and say what they do not
take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from executor import CudaExecutor, GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.types import BF16, F16, F32, S8, DType

Make = Callable[[CudaExecutor], Callable[..., GpuBuffer]]
EMPTY_AND_ZEROS: list[Make] = [lambda executor: executor.empty, lambda executor: executor.zeros]
both = pytest.mark.parametrize("make", EMPTY_AND_ZEROS, ids=["empty", "zeros"])


@both
@pytest.mark.parametrize(
    ("given", "shape"),
    [((6,), (6,)), ((2, 3), (2, 3)), (((2, 3),), (2, 3)), (([2, 3],), (2, 3)), (((6,),), (6,)), ((np.int64(6),), (6,)),
     ((np.zeros((2, 3)).shape,), (2, 3)), ((np.array([2, 3]),), (2, 3)), ((), ()), (((),), ())],
    ids=str,
)  # fmt: skip
def test_a_shape_is_numbers_or_a_tuple(executor: CudaExecutor, make: Make, given: Any, shape: tuple[int, ...]) -> None:
    made = make(executor)(*given, name="h")
    assert (made.shape, made.dtype, made.name) == (shape, F32, "h")


@both
@pytest.mark.parametrize(
    ("dtype", "expected"), [(F16, F16), ("half", F16), (np.float16, F16), (np.dtype("i1"), S8), ("bfloat16", BF16)], ids=str
)
def test_a_type_has_its_usual_spellings(executor: CudaExecutor, make: Make, dtype: object, expected: DType) -> None:
    assert make(executor)((2, 3), dtype=dtype).dtype is expected


def test_zeros_are_zeros(executor: CudaExecutor) -> None:
    np.testing.assert_array_equal(executor.zeros((2, 3), dtype="int8").to_numpy(), np.zeros((2, 3), np.int8))


def test_an_empty_buffer_is_not_written(executor: CudaExecutor) -> None:
    assert (executor.empty(4).version, executor.zeros(4).version) == (0, 1)


def test_the_type_of_bits_is_given_by_name(executor: CudaExecutor) -> None:
    assert executor.buffer(np.zeros(3, np.uint16), "bfloat16").dtype is BF16


@both
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (((2, 3), np.float32), r"the shape has a tuple in it; allowed: n, or n, m, or \(n, m\); a type is dtype="),
        ((4, "f32"), r"the shape has 'f32' in it; .* a type is dtype="),
        ((2, 1.5), r"the shape has 1\.5 in it"),
        ((1.5,), r"the shape of a buffer is 1\.5; allowed: whole numbers of at least 1"),
        (("4",), "the shape of a buffer is '4'"),
        ((True,), "the shape of a buffer is True"),
        (((2, 0),), r"the shape of a buffer is \[2, 0\]"),
        ((None,), "the shape of a buffer is None"),
    ],
    ids=str,
)
def test_what_is_no_shape_is_refused(executor: CudaExecutor, make: Make, given: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make(executor)(*given)
    assert executor.device.memory().allocated == 0


@both
def test_what_is_no_type_is_refused_with_those_that_are(executor: CudaExecutor, make: Make) -> None:
    with pytest.raises(ArgumentError, match=r"dtype is 'float'; allowed: u8 \(uint8\), .*f32 \(float32, single\)"):
        make(executor)(4, dtype="float")
    assert executor.device.memory().allocated == 0


def test_a_buffer_is_no_array_to_copy(executor: CudaExecutor) -> None:
    with pytest.raises(ArgumentError, match=r"a GpuBuffer, which NumPy cannot .* write buffer\.to_numpy\(\)"):
        executor.buffer(executor.zeros(4))
