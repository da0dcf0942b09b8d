"""LayerNorm: the traps that its reference alone would not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.norm.layernorm import LayerNorm
from ptxgen.kernels.quantize.f16_split import pack
from ptxgen.kernels.quantize.forms import F16Split
from ptxgen.kernels.quantize.int8_planes import quantize
from tests.ptxgen.kernels.checking import check, run


def arguments_of(kernel: LayerNorm, seed: int = 1) -> dict[str, Any]:
    return kernel.inputs(np.random.default_rng(seed))


def test_a_mean_that_is_a_thousand_deviations_costs_no_more_than_its_rounding() -> None:
    kernel = LayerNorm(hidden=300, bias=True)
    arguments = arguments_of(kernel)
    arguments["x"] = (np.random.default_rng(2).standard_normal((1, 300)) + 1000).astype(np.float32)
    assert float(np.max(np.asarray(kernel.tolerance(**arguments)["y"]))) < 1e-2
    check(kernel, arguments)


def test_a_row_of_one_value_becomes_the_bias() -> None:
    kernel = LayerNorm(hidden=256, bias=True)
    arguments = arguments_of(kernel) | {"x": np.full((1, 256), 7.0, np.float32)}
    assert run(kernel, arguments)["y"][0].tobytes() == arguments["beta"].tobytes()


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    rows, single = LayerNorm(hidden=300, m=3), LayerNorm(hidden=300)
    arguments = arguments_of(rows)
    together = run(rows, arguments)["y"]
    for row in range(3):
        alone = run(single, {**arguments, "x": arguments["x"][row : row + 1], "y": arguments["y"][row : row + 1]})["y"]
        assert alone.tobytes() == together[row].tobytes()


@pytest.mark.parametrize(
    "kernel",
    [
        LayerNorm(1056, m=2, bias=True, digits=2),
        LayerNorm(2048, weighted=False, digits=3),
        LayerNorm(1312, m=3, bias=True, parts=2, lane_run=64),
        LayerNorm(256, m=9, parts=1, lane_run=4),
    ],
    ids=str,
)
def test_a_form_has_the_bits_of_the_norm_and_then_the_form(kernel: LayerNorm) -> None:
    arguments = arguments_of(kernel)
    arguments["x"][0, :32] = 0.0
    plain = replace(kernel, digits=None, parts=None, lane_run=None)
    y = run(plain, {name: arguments[name] for name in plain.signature()})["y"]
    form = kernel.form
    wanted = pack(y, form.form)._asdict() if isinstance(form, F16Split) else quantize(y, kernel.digits or 0)._asdict()
    results = run(kernel, arguments)
    assert results["y"].tobytes() == y.tobytes()
    assert {name: results[name].tobytes() for name in wanted} == {name: array.tobytes() for name, array in wanted.items()}


def test_a_bias_without_a_weight_is_refused() -> None:
    with pytest.raises(ArgumentError, match="layernorm: a bias needs a weight"):
        LayerNorm(hidden=64, weighted=False, bias=True)
