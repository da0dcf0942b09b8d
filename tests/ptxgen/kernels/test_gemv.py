"""What the matrix-vector kernels promise beyond the catalogue's tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, Format
from ptxgen.kernels.gemv.basic import Gemv
from ptxgen.kernels.gemv.dot import unrolled
from ptxgen.kernels.registry import find
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

every_format = pytest.mark.parametrize("format", FORMATS.values(), ids=str)


@every_format
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(format: Format) -> None:
    kernel = Gemv(format=format, k=3 * max(format.block, 32), n=6)
    arguments = inputs(kernel)
    together, _ = emulate(kernel, arguments)
    alone, _ = emulate(
        Gemv(format=format, k=kernel.k, n=1), {"y": np.zeros(1, np.float32), "w": arguments["w"][5:], "x": arguments["x"]}
    )
    assert together["y"][5].tobytes() == alone["y"][0].tobytes()


@pytest.mark.parametrize("position", [0, 15, 16, 31, 32, 63, 64, 287])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_each_weight_meets_its_own_activation(name: str, position: int) -> None:
    kernel = find(f"{name.lower()}_gemv").make(k=288, n=3)
    arguments = inputs(kernel)
    arguments["x"][:] = 0
    arguments["x"][position] = 1
    results, _ = emulate(kernel, arguments)
    assert np.array_equal(results["y"], FORMATS[name].dequantize(arguments["w"])[:, position])


def test_a_whole_matrix_of_smollm2_is_right_without_the_sanitiser() -> None:
    kernel = find("q4_1_gemv").make(k=576, n=1536)
    arguments = inputs(kernel)
    results, _ = emulate(kernel, arguments, sanitize=False)
    assert_matches_reference(kernel, arguments, results)


@given(steps=st.integers(0, 2000), most=st.integers(1, 32))
def test_unrolling_stays_within_its_limit_and_prefers_a_divisor(steps: int, most: int) -> None:
    chosen = unrolled(steps, most)
    assert 1 <= chosen <= most
    if any(steps % n == 0 for n in range(most // 2 + 1, most + 1)) and steps > most:
        assert steps % chosen == 0


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("q4k_gemv", {"k": 576, "n": 4}, "q4k_gemv: k must be a multiple of 256, 1 or more, got 576"),
        ("q4_1_gemv", {"k": 0, "n": 4}, "q4_1_gemv: k must be a multiple of 32, 1 or more, got 0"),
        ("f32_gemv", {"k": 8, "n": 0}, "f32_gemv: n must be an integer, 1 or more, got 0"),
        ("f32_gemv", {"k": 8.5, "n": 1}, "f32_gemv: k must be an integer, 1 or more, got 8.5"),
    ],
)
def test_an_impossible_shape_says_what_is_allowed(name: str, shape: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find(name).make(**shape)
