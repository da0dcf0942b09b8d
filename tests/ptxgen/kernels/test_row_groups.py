"""hw_dp4a whose warps take their rows in several groups: the bits of one group, each row stored by one warp, and what is
refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import for_rows
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import emulate, inputs

SHAPES: list[tuple[str, dict[str, Any], list[dict[str, int]]]] = [
    (
        "hw_dp4a_q4k_gemv",
        {"k": 4096, "n": 37, "normed": True},
        [{"row_groups": 4}, {"row_groups": 8}, {"row_groups": 2, "rows_per_warp": 4}],
    ),
    (
        "hw_dp4a_q4k_gemv",
        {"k": 1024, "n": 53},
        [{"row_groups": 8}, {"row_groups": 4, "rows_per_warp": 1}],
    ),  # two rows side by side
    ("hw_dp4a_q4k_gemv_residual", {"k": 2048, "n": 67}, [{"row_groups": 4}]),
    ("hw_dp4a_q6k_aligned_gemv", {"k": 1536, "n": 67}, [{"row_groups": 4}, {"row_groups": 4, "rows_per_warp": 1}]),
    ("hw_dp4a_q6k_gemv", {"k": 896 * 2, "n": 19, "digits": 1}, [{"row_groups": 2}]),
    ("hw_dp4a_q8_0_gemv", {"k": 896, "n": 67}, [{"row_groups": 4, "rows_per_warp": 4}]),
    ("joined_hw_dp4a_q4k_gemv", {"k": 2048, "n": 67, "n2": 33, "n3": 16}, [{"row_groups": 4}, {"row_groups": 8}]),
    ("mixed_hw_dp4a_q4k_q6k_gemv", {"k": 1536, "n": 67, "n2": 33, "n3": 16, "normed": True}, [{"row_groups": 4}]),
]


@pytest.mark.parametrize(("name", "shape", "settings"), SHAPES, ids=[f"{name}-{shape['k']}" for name, shape, _ in SHAPES])
def test_row_groups_change_no_bit_and_write_no_row_twice(
    name: str, shape: dict[str, Any], settings: list[dict[str, int]]
) -> None:  # fmt: skip
    once = find(name).make(**{"digits": 3, "num_warps": 2, **shape})
    arguments = inputs(once)
    expected, _ = emulate(once, arguments, sanitize=False)
    for one in settings:
        kernel = replace(once, **one)
        results, findings = emulate(kernel, arguments)
        assert not findings, "two warps that store a row race, and one that adds to it adds twice"
        assert all(results[name].tobytes() == expected[name].tobytes() for name in expected)


def test_loads_run_on_from_a_turn_into_the_next() -> None:
    """In the loop there are as many loads of weights as a row group takes, and none waits for the sums of the row group
    before."""
    kernel = find("hw_dp4a_q4k_gemv").make(k=4096, n=4096, digits=3, row_groups=4)
    lines = emit(kernel, Target(90)).text.splitlines()
    start, end = (
        next(i for i, line in enumerate(lines) if re.match(pattern, line)) for pattern in (r"\$loop_\d", r"\$loop_end")
    )
    (last_load, *_) = [i for i in range(end, start, -1) if "L2::128B" in lines[i]]
    (first_sum, *_) = [i for i in range(start, end) if "shfl" in lines[i]]
    assert sum("L2::128B" in line for line in lines[start:end]) == 2 * 2 * 3  # rows, steps, loads a fragment
    assert last_load < first_sum


def test_row_groups_spill_nothing() -> None:
    for shape in ({"k": 4096, "n": 128256}, {"k": 1024, "n": 151936}, {"k": 3584, "n": 152064}):
        for rows in (1, 2):
            kernel = find("hw_dp4a_q6k_aligned_gemv").make(digits=3, row_groups=4, rows_per_warp=rows, **shape)
            assert assemble(emit(kernel, Target(90)).text, Target(90)).spill_stores == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"row_groups": 33}, "row_groups must be an integer, 1..32, got 33"),
        ({"row_groups": 32}, "row_groups must be fewer than 32, in which a warp has 64 rows: there are 32 lanes"),
        (
            {"row_groups": 16, "n": 31},
            "row_groups must be fewer than 16, in which a warp has 32 rows: there are 31 rows of a matrix",
        ),
        ({"row_groups": 2, "k": 28672}, "must be 1 where activations do not fit shared memory at once, as 3 planes of k=28672"),
    ],
    ids=str,
)
def test_row_groups_that_there_cannot_be_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find("hw_dp4a_q4k_gemv").make(**{"k": 4096, "n": 40, "digits": 3, **settings})


def test_several_rows_of_activations_take_no_row_groups() -> None:
    kernel = find("hw_dp4a_q4k_gemv").make(k=4096, n=64, digits=3, row_groups=4)
    assert isinstance(kernel, HwDp4aGemv)
    (batched,) = for_rows(kernel, 3)
    assert isinstance(batched, HwDp4aGemv)
    assert batched.row_groups == 1
    with pytest.raises(ArgumentError, match="row_groups must be 1 for several rows of activations"):
        replace(batched, row_groups=2)
