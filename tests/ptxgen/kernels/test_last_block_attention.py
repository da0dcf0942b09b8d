"""Attention in one launch, the last block of which puts the parts together: the very bits of the two launches, whatever the
order of the blocks, and counters that are zeros again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.f16_split import F16SplitOutput
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.output import Output
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.attention.paged_last_block import PagedAttentionLastBlock
from ptxgen.kernels.attention.split import HANDED
from ptxgen.kernels.quantize.int8_planes import quantize, unwritten
from tests.ptxgen.kernels.checking import run
from tests.ptxgen.kernels.test_paged_attention import Arguments, at, attended, made


def merged(kernel: PagedAttention, arguments: Arguments, *, digits: int = 0, seed: int | None = None) -> dict[str, Any]:
    """What one launch makes of the arguments."""
    one = PagedAttentionLastBlock(**kernel.parameters(), output=Int8PlanesOutput(digits) if digits else Output())
    given = {**arguments, "out": np.full((kernel.rows, kernel.heads, kernel.head_dim), np.nan, np.float32)}
    given["counters"] = np.zeros((kernel.rows, kernel.kv_heads * kernel.blocks), np.uint32)
    if digits:
        given |= unwritten(kernel.rows, digits, kernel.heads * kernel.head_dim)
    found = run(one, given, seed=seed)
    assert not found["counters"].any()
    return found


SHAPES: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"heads": 3, "spread": 2, "splits": 5}, (1, 32, 33, 160, 150, 100)),  # of the last two a page and the place are missing
    ({"heads": 9, "kv_type": "f16"}, (150, 33)),  # two blocks for the heads of a group
    ({"head_dim": 128, "heads": 1, "least": 128, "max_len": 288, "pages": 23}, (288, 129, 128)),  # four warps for a head
    ({"head_dim": 128, "heads": 3, "least": 256, "tile": 16, "max_len": 288, "pages": 16}, (288, 129)),  # two heads a turn
    ({"heads": 1, "splits": 64, "max_len": 1120, "pages": 35}, (1120,)),  # more parts than a warp takes at once
]


@pytest.mark.parametrize(("shape", "lengths"), SHAPES)
def test_one_launch_has_the_bits_of_two(shape: dict[str, Any], lengths: tuple[int, ...]) -> None:
    kernel = made(len(lengths), **shape)
    arguments = at(kernel, lengths)
    if len(lengths) == 6:
        arguments["tables"][4, 2], arguments["position"][5] = kernel.pages, kernel.max_len
    two = attended(kernel, arguments)["out"]
    assert np.isfinite(two).all()
    for seed in (None, 1, 2):
        assert merged(kernel, arguments, seed=seed)["out"].tobytes() == two.tobytes()


@pytest.mark.parametrize("length", [20, 100])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -1e-41])
def test_values_that_are_not_normal_have_the_bits_of_two_launches(value: float, length: int) -> None:
    kernel = made(1)
    arguments = at(kernel, (length,))
    for name, lane in (("k_cache", 3), ("v_cache", 7)):
        other = {name: array.copy() if name == "v_cache" else array for name, array in arguments.items()}
        for position in range(length) if abs(value) < 1 else (length - 1,):
            page, place = kernel.standing(arguments, 0)[position]
            other[name] = other[name].copy()
            other[name][page, 0, place, lane] = value
        assert merged(kernel, other)["out"].tobytes() == attended(kernel, other)["out"].tobytes()


def test_a_row_with_one_part_hands_nothing_over() -> None:
    kernel = made(2)
    found = merged(kernel, at(kernel, (32, 33)))
    for name in HANDED:
        assert np.isnan(found[name][0]).all()
        assert not np.isnan(found[name][1, :, :2]).any()


def test_the_planes_are_those_of_the_result_bit_for_bit() -> None:
    kernel, digits = made(3, heads=3), 3
    arguments = at(kernel, (100, 30, 33))
    found = merged(kernel, arguments, digits=digits)
    assert found["out"].tobytes() == attended(kernel, arguments)["out"].tobytes()
    expected = quantize(found["out"].reshape(3, -1), digits)
    assert all(found[name].tobytes() == array.tobytes() for name, array in expected._asdict().items())


def test_the_f16_split_is_those_of_two_launches_bit_for_bit() -> None:
    kernel = made(3, heads=4, kv_heads=2, head_dim=128)
    arguments = at(kernel, (100, 30, 33))
    arguments["tables"][2, 1] = kernel.pages
    shape = {name: getattr(kernel, name) for name in ("rows", "heads", "head_dim", "max_len", "splits", "least")}
    reduce = PagedAttentionReduce(**shape, output=F16SplitOutput(2, 4))
    one = PagedAttentionLastBlock(**kernel.parameters(), output=F16SplitOutput(2, 4))
    blank = one.inputs(np.random.default_rng(1))
    given = {name: blank[name] for name in ("out", "halves", "scales")}
    wanted = run(reduce, {**given, **run(kernel, arguments), "position": arguments["position"]})
    found = run(one, {**given, **arguments, "counters": blank["counters"]})
    assert all(found[name].tobytes() == array.tobytes() for name, array in wanted.items())


@pytest.mark.parametrize(("heads", "windows"), [(1, 0), (2, 1), (3, 0), (4, 2)])
def test_f16_split_needs_heads_of_a_block_that_fill_windows(heads: int, windows: int) -> None:
    kernel = made(1, heads=heads, head_dim=128, least=128)
    assert PagedAttentionLastBlock(**kernel.parameters()).windows == windows
    if not windows:
        with pytest.raises(ArgumentError, match=rf"heads={heads}.*: the heads of a block must be a multiple of 256 values"):
            PagedAttentionLastBlock(**kernel.parameters(), output=F16SplitOutput(1, 4))


def test_an_impossible_number_of_planes_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match=r"^paged_attention_merged_digits: digits must be an integer, 1\.\.3, got 4"):
        PagedAttentionLastBlock(**made(1).parameters(), output=Int8PlanesOutput(4))
