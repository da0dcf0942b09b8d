"""The parameter block lays arguments out as the PTX ISA says."""

from __future__ import annotations

import ctypes
import struct

import pytest

from executor.device.parameters import ParameterBlock, scalar_fault
from ptxgen.dsl.arguments import Scalar, read
from ptxgen.errors import ArgumentError
from ptxgen.types import B32, BF16, F16, F32, F64, S8, S32, U8, U16, U32, U64


def test_each_argument_starts_at_its_natural_alignment() -> None:
    block = ParameterBlock({"a": Scalar(U8), "b": Scalar(F64), "c": Scalar(U16), "d": read(F32, 4), "e": Scalar(S32)})
    for name, value in {"a": 1, "b": 2.0, "c": 3, "d": 2**40, "e": -5}.items():
        block.set(name, value)
    assert block.tobytes() == struct.pack("<B7xdH6xQi", 1, 2.0, 3, 2**40, -5)


def test_the_pointer_array_points_at_each_argument() -> None:
    block = ParameterBlock({"a": Scalar(U8), "b": Scalar(U64), "c": Scalar(F32)})
    block.set("b", 2**50)
    addresses = (ctypes.c_uint64 * 3).from_address(block.pointers)
    assert ctypes.c_uint64.from_address(addresses[1]).value == 2**50
    assert [address - addresses[0] for address in addresses] == [0, 8, 16]


def test_a_kernel_without_arguments_has_an_empty_block() -> None:
    assert ParameterBlock({}).tobytes() == b""


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (U8, 255),
        (S8, -128),
        (U32, 2**32 - 1),
        (U64, 2**64 - 1),
        (F16, 65504.0),
        (F32, -1),
        (F32, float("inf")),
        (B32, 2**32 - 1),
    ],
)
def test_the_ends_of_a_type_fit(dtype: object, value: float) -> None:
    assert scalar_fault(Scalar(dtype), value) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "value"), [(U8, 256), (S8, -129), (U32, 2**32), (U64, -1), (F16, 65520.0), (F32, 2**128)])
def test_one_beyond_the_ends_does_not(dtype: object, value: float) -> None:
    assert scalar_fault(Scalar(dtype), value)  # type: ignore[arg-type]


def test_declared_bounds_are_inclusive() -> None:
    scalar = Scalar(F32, low=0.0, high=1.0)
    assert [scalar_fault(scalar, value) == "" for value in (-0.001, 0.0, 1, 1.001)] == [False, True, True, False]


def test_a_type_that_cannot_be_passed_by_value_is_named() -> None:
    with pytest.raises(ArgumentError, match="bf16 cannot be passed by value"):
        ParameterBlock({"a": Scalar(BF16)})
