"""The vocabulary of checks on arguments: what each takes, gives back and says."""

from __future__ import annotations

import numpy as np
import pytest

from executor import GpuProfile
from executor.base.arguments import described, extents, instance, number, one_of, same_shape, tokens, whole
from ptxgen.errors import ArgumentError


def test_a_whole_number() -> None:
    assert [whole("x", value, 0, 9) for value in (0, np.int8(9), np.uint64(5))] == [0, 9, 5]
    assert type(whole("x", np.int64(3))) is int
    for value, said in ((10, "x is 10; allowed: a whole number from 0 to 9"), (np.float64(1), r"x is 1\.0; allowed")):
        with pytest.raises(ArgumentError, match=said):
            whole("x", value, 0, 9)
    with pytest.raises(ArgumentError, match="x is a number of 33220 bits; allowed"):
        whole("x", 10**10000, 0, 9)


def test_a_finite_number() -> None:
    assert number("x", np.float32(0.5), 0, 1) == 0.5
    for value in (float("nan"), float("inf"), True, "1", None, 1.5, 1j, 10**400):
        with pytest.raises(ArgumentError, match=r"x is .*; allowed: a finite number from 0 to 1"):
            number("x", value, 0, 1)


def test_a_name() -> None:
    assert one_of("x", "b", ("a", "b")) == "b"
    for value in ("c", None, ["a"], 1):
        with pytest.raises(ArgumentError, match=r"x is .*; allowed: a, b"):
            one_of("x", value, ("a", "b"))


def test_tokens() -> None:
    assert tokens("x", range(3), 9) == tokens("x", np.arange(3, dtype=np.uint16), 9) == [0, 1, 2]
    for value, said in (
        ("text", "x is text, 'text'; allowed: token ids, which `encode`"),
        ([1, 7.5], r"token 1 of x is 7\.5; allowed: a whole number"),
        (np.zeros((1, 2), int), r"x is a ndarray of shape \[1, 2\]; allowed: one row"),
        (7, "x is 7; allowed: one row"),
        ([9], "token id 9 is out of range; the vocabulary has ids 0 to 8"),
    ):
        with pytest.raises(ArgumentError, match=said):
            tokens("x", value, 9)


def test_a_shape() -> None:
    assert extents("x", [np.int64(2), 3]) == (2, 3)
    assert extents("x", 5) == extents("x", np.int64(5)) == (5,)
    for value in ((2, 0), (2.0,), "23", 0, 5.0, True, None, (True,)):
        with pytest.raises(ArgumentError, match=r"x is .*; allowed: whole numbers of at least 1"):
            extents("x", value)


@pytest.mark.parametrize("given", [(2, 3), (6,), (1, 2, 3), (2, 1, 3)])
def test_the_same_shape(given: tuple[int, ...]) -> None:
    assert same_shape(given, (2, 3))


@pytest.mark.parametrize("given", [(3, 2), (1, 6), (6, 1), (2, 4), (5,), ()])
def test_another_shape(given: tuple[int, ...]) -> None:
    assert not same_shape(given, (2, 3))


def test_an_object() -> None:
    assert instance("x", 1, int) == 1
    with pytest.raises(ArgumentError, match="x is 'fast'; allowed: a GpuProfile"):
        instance("x", "fast", GpuProfile)


def test_a_value_in_a_message_is_short() -> None:
    assert len(described("x" * 1000)) <= 80
    assert described("a\x1b[0m") == "'a\\x1b[0m'"
    assert described(np.float64(2.5)) == "2.5"
    assert described([1] * 1000) == "a list"
