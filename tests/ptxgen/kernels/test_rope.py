"""Rope: which values are turned, by which angle, and what happens past the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import find
from ptxgen.kernels.rope.rope import Rope
from ptxgen.kernels.rope.table import rope_table
from tests.ptxgen.kernels.checking import check, run

STYLES = ("rope", "rope_neox")


def at(kernel: Rope, position: int, seed: int = 1) -> dict[str, Any]:
    """Random arguments, at this position."""
    value = np.array([position], np.uint32)
    return kernel.inputs(np.random.default_rng(seed)) | {"position": value if kernel.indirect else value[0]}


@pytest.mark.parametrize("name", STYLES)
def test_position_zero_turns_nothing(name: str) -> None:
    kernel = Rope(neox=name == "rope_neox", indirect=False, heads=2, head_dim=64, max_len=4)
    arguments = at(kernel, 0)
    assert run(kernel, arguments)["x"].tobytes() == arguments["x"].tobytes()


@pytest.mark.parametrize(("neox", "partner"), [(False, 3), (True, 34)])
def test_the_styles_pair_different_values(neox: bool, partner: int) -> None:
    kernel = Rope(neox=neox, indirect=False, heads=1, head_dim=64, max_len=8)
    arguments = at(kernel, 5)
    arguments["x"] = np.zeros((1, 64), np.float32)
    arguments["x"][0, 2] = 1.0
    turned = run(kernel, arguments)["x"][0]
    assert set(np.flatnonzero(turned)) == {2, partner}
    pair = 2 if neox else 1
    assert np.allclose(turned[[2, partner]], [np.cos(5 * 1e5 ** (-pair / 32)), np.sin(5 * 1e5 ** (-pair / 32))], rtol=1e-6)


@pytest.mark.parametrize("name", STYLES)
def test_a_position_from_a_buffer_gives_the_same_bits(name: str) -> None:
    direct = find(name).make(heads=9, head_dim=64, max_len=50)
    indirect = find(f"{name}_indirect").make(heads=9, head_dim=64, max_len=50)
    assert isinstance(direct, Rope)
    assert isinstance(indirect, Rope)
    assert run(direct, at(direct, 49))["x"].tobytes() == run(indirect, at(indirect, 49))["x"].tobytes()


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("position", [7, 8, 2**31, 2**32 - 1])
def test_a_position_past_the_table_changes_nothing(neox: bool, position: int) -> None:
    kernel = Rope(neox=neox, indirect=True, heads=3, head_dim=64, max_len=7)
    arguments = at(kernel, position)
    assert run(kernel, arguments)["x"].tobytes() == arguments["x"].tobytes()


@pytest.mark.parametrize("neox", [False, True])
def test_values_past_rotary_dim_are_left_alone(neox: bool) -> None:
    kernel = Rope(neox=neox, indirect=False, heads=3, head_dim=64, max_len=7, rotary_dim=32)
    arguments = at(kernel, 6)
    turned = check(kernel, arguments)["x"]
    assert np.array_equal(turned[:, 32:], arguments["x"][:, 32:])
    assert not np.equal(turned[:, 1:32], arguments["x"][:, 1:32]).any()


def test_the_table_holds_the_angles_of_far_positions() -> None:
    table = rope_table(131072, 64, 500000.0)
    angle = np.longdouble(131071) * np.longdouble(500000.0) ** (np.longdouble(-2) / 64)
    assert np.allclose(table[131071, 1], [np.cos(angle), np.sin(angle)], rtol=0, atol=6e-8)


def test_frequency_factors_divide_the_angles() -> None:
    factors = np.array([1.0, 2.0, 8.0, 32.0])
    plain, slowed = rope_table(65, 8, 1e4), rope_table(65, 8, 1e4, factors)
    for i, factor in enumerate((1, 2, 8, 32)):
        assert np.allclose(slowed[64, i], plain[64 // factor, i], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 8, 1e4), "max_len"),
        ((4, 7, 1e4), "rotary_dim"),
        ((4, 8, -1.0), "base"),
        ((4, 8, float("nan")), "base"),
        ((4, 8, 1e4, [1.0, 1.0]), "freq_factors"),
        ((4, 8, 1e4, [1.0, 0.0, 1.0, 1.0]), "freq_factors"),
    ],
)
def test_an_impossible_table_is_refused_by_name(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        rope_table(*arguments)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(63, 0), (64, 65), (64, 66), (0, 0)])
def test_an_impossible_head_is_refused(head_dim: int, rotary_dim: int) -> None:
    with pytest.raises(ArgumentError, match="rope: "):
        find("rope").make(heads=1, head_dim=head_dim, max_len=4, rotary_dim=rotary_dim)


def test_naming_the_whole_head_or_nothing_is_the_same_kernel() -> None:
    assert find("rope").make(heads=1, head_dim=64, max_len=4) == find("rope").make(
        heads=1, head_dim=64, max_len=4, rotary_dim=64
    )
