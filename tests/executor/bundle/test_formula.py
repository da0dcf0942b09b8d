"""TracedInt numbers: equal to the plain ones, with formulae that compute them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from executor.bundle.formula import TracedInt, formula_of, plain, traced
from ptxgen.kernels.registry import find

NAMES = {"a": 7, "b": 3, "c": 64}


@dataclass(frozen=True)
class Shape:
    a: int
    flag: bool
    name: str


def tree(depth: int) -> st.SearchStrategy[int]:
    """Expressions of names and small numbers, computed on traced numbers."""
    leaves = st.sampled_from([TracedInt(value, name) for name, value in NAMES.items()]) | st.integers(-3, 5)
    if depth == 0:
        return leaves
    pairs = st.tuples(tree(depth - 1), tree(depth - 1))
    return (
        leaves
        | pairs.map(lambda p: p[0] + p[1])
        | pairs.map(lambda p: p[0] - p[1])
        | pairs.map(lambda p: p[0] * p[1])
        | pairs.filter(lambda p: p[1] != 0).map(lambda p: p[0] // p[1])
        | pairs.filter(lambda p: p[1] != 0).map(lambda p: p[0] % p[1])
        | tree(depth - 1).map(lambda x: -x)
    )


@given(tree(3))
def test_a_formula_computes_its_number(number: int) -> None:
    assert eval(formula_of(number), {}, dict(NAMES)) == number


def test_the_usual_sizes_read_well() -> None:
    n, heads = TracedInt(576, "n"), TracedInt(9, "heads")
    assert formula_of(-(-n // 256)) == "-(-n // 256)"
    assert formula_of(1 * n // 32 * 20 + 0) == "n // 32 * 20"
    assert formula_of(heads * (n + 1)) == "heads * (n + 1)"


def test_a_traced_number_is_the_plain_number_to_everybody_else() -> None:
    n = TracedInt(576, "n")
    assert (n, hash(n), f"{n}", repr(n), {576: "found"}[n]) == (576, hash(576), "576", "576", "found")
    assert (n * 1.5, 2 * n) == (864.0, 1152)


def test_a_formula_that_would_be_long_is_dropped() -> None:
    n = TracedInt(1, "n")
    for _ in range(100):
        n += n // 3
    assert len(formula_of(n)) <= 120


def test_only_whole_numbers_of_a_record_are_traced() -> None:
    shape = traced(Shape(a=5, flag=True, name="x"))
    assert (formula_of(shape.a), shape.flag, shape) == ("a", True, Shape(5, True, "x"))
    assert type(plain(shape).a) is int


def test_traced_numbers_of_a_part_lose_their_formulae_too() -> None:
    kernel = find("paged_attention_reduce_digits").make(rows=1, heads=1, head_dim=32, max_len=32, digits=TracedInt(2, "d"))
    assert not isinstance(plain(kernel).parameters()["digits"], TracedInt)
