"""What can be tried of the second opinion without a GPU: rounding to 8 bits, and what is said without cuBLASLt."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.cublaslt import NoCublas, bindings
from benchmarks.dense_second_opinion import e4m3


def test_8_bit_floats_are_the_nearest_there_are() -> None:
    codes, scale = e4m3(np.array([448.0, -448.0, 1.0, 1.0624, -1.0626, 2.0**-9, 0.0, 400.0]))
    assert scale == 1.0
    assert codes.tolist() == [0x7E, 0xFE, 0x38, 0x38, 0xB9, 0x01, 0x00, 0x7C]


def test_the_largest_value_becomes_the_largest_there_is() -> None:
    codes, scale = e4m3(np.array([[-7.0, 3.5]], np.float32))
    assert scale == pytest.approx(7 / 448)
    assert codes.tolist() == [[0xFE, 0x76]]


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath", None)
    with pytest.raises(NoCublas, match=r"cuBLASLt cannot be used \(.*\): pip install .nvidia-cublas.*nvmath-python"):
        bindings()
