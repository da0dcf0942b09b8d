"""Element-wise kernels: in place where they say so, and right in the tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.activation.element import Elementwise
from ptxgen.kernels.activation.elementwise import AddInPlace, ElementwiseMul, Gelu, Silu, SquaredRelu, Xielu
from ptxgen.kernels.activation.functions import GATES
from ptxgen.kernels.activation.scales import AddScaled, Softcap
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.types import F32
from tests.ptxgen.kernels.checking import check, run


@pytest.mark.parametrize("type", [AddInPlace, ElementwiseMul, Silu, Gelu, FusedSwiglu])
@pytest.mark.parametrize("n", [1, 33, 257])
def test_any_number_of_elements(type: type[Elementwise], n: int) -> None:
    kernel = type(n=n)
    check(kernel, kernel.inputs(np.random.default_rng(n)))


def test_the_residual_stream_is_updated_in_place() -> None:
    kernel = AddInPlace(n=3)
    x, delta = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    assert run(kernel, {"x": x, "delta": delta})["x"].tolist() == [11, 22, 33]


@pytest.mark.parametrize("kernel", [Silu(n=512), Gelu(n=512)])
def test_activations_hold_their_bound_over_all_magnitudes(kernel: Elementwise) -> None:
    rng = np.random.default_rng(1)
    x = (rng.choice([-1.0, 1.0], 512) * 10.0 ** rng.uniform(-38, 12, 512)).astype(np.float32)
    check(kernel, {"y": np.empty(512, np.float32), "x": x})


@pytest.mark.parametrize("type", [Silu, Gelu])
def test_the_tails_are_the_identity_and_zero(type: type[Elementwise]) -> None:
    x = np.array([1e4, 1e30, -1e4, -1e30, 0.0, -0.0], np.float32)
    assert run(type(n=6), {"y": np.empty(6, np.float32), "x": x})["y"].tolist() == [x[0], x[1], 0, 0, 0, 0]


@pytest.mark.parametrize(("activation", "alone"), [("silu", Silu), ("gelu", Gelu)])
def test_a_gated_product_is_the_activation_times_up_to_the_bit(activation: str, alone: type[Elementwise]) -> None:
    kernel = FusedSwiglu(n=300, activation=activation)
    arguments = kernel.inputs(np.random.default_rng(2))
    activated = run(alone(n=300), {"y": arguments["y"], "x": arguments["gate"]})["y"]
    assert run(kernel, arguments)["y"].tobytes() == (activated * arguments["up"]).tobytes()


def test_a_sigmoid_has_its_ends_and_keeps_nan() -> None:
    x, ones = np.array([-np.inf, -100.0, 0.0, 100.0, np.inf, np.nan], np.float32), np.ones(6, np.float32)
    gated = run(FusedSwiglu(n=6, activation="sigmoid"), {"y": np.empty(6, np.float32), "gate": x, "up": ones})["y"]
    np.testing.assert_allclose(gated, np.array([0, 0, 0.5, 1, 1, np.nan], np.float32), atol=1e-37)


def test_xielu_does_not_cancel_near_zero_and_keeps_nan() -> None:
    x = np.array([-1e30, -1e3, -1e-3, -1e-7, 0.0, 1e-7, 10.0, 1e3], np.float32)
    kernel, y = Xielu(8, alpha_n=1.42, alpha_p=1.1, beta=0.5, margin=1e-6), np.empty(8, np.float32)
    check(kernel, {"y": y, "x": x})
    assert np.isnan(run(kernel, {"y": y, "x": np.full(8, np.nan, np.float32)})["y"]).all()


def test_relu_takes_away_what_is_negative_and_keeps_nan() -> None:
    x = np.array([-np.inf, -1.0, -0.0, 3.0, np.inf, np.nan], np.float32)
    up = np.full(6, 2.0, np.float32)
    gated = run(FusedSwiglu(n=6, activation="relu"), {"y": np.empty(6, np.float32), "gate": x, "up": up})["y"]
    np.testing.assert_array_equal(gated, np.array([0, 0, 0, 6, np.inf, np.nan], np.float32))
    squared = run(SquaredRelu(n=6), {"y": np.empty(6, np.float32), "x": x})["y"]
    np.testing.assert_array_equal(squared, np.array([0, 0, 0, 9, np.inf, np.nan], np.float32))


@pytest.mark.parametrize("name", GATES)
def test_no_slope_of_a_gate_is_steeper_than_it_says_nor_that_of_its_bound_than_its_epilogue_allows(name: str) -> None:
    gate, x = GATES[name], np.linspace(-30, 30, 600_001)
    slope, of_bound = (np.abs(np.diff(of(x)) / np.diff(x)).max() for of in (gate.function.exact, gate.function.bound))
    assert 0.99 * gate.steepest < slope < gate.steepest * (1 + 1e-9)
    assert of_bound < 0.9 * 2.0**-20 * gate.steepest + UNIT


def test_logits_stay_within_their_cap_and_keep_their_sign() -> None:
    x = np.array([-np.inf, -1e30, -1e-3, 0.0, 1e-3, 1e30, np.inf, np.nan], np.float32)
    capped = run(Softcap(n=8, cap=30.0), {"x": x})["x"]
    np.testing.assert_array_equal(capped[[0, 1, 3, 5, 6, 7]], np.array([-30, -30, 0, 30, 30, np.nan], np.float32))
    np.testing.assert_allclose(capped[[2, 4]], x[[2, 4]], rtol=1e-6)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e39, 1e-40, float("nan"), True, "2"])
def test_an_impossible_scale_is_refused(scale: Any) -> None:
    with pytest.raises(ArgumentError, match="scale must be a number above 0 that f32 holds, got"):
        AddScaled(n=4, scale=scale)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ArgumentError, match="activates by silu, gelu, relu, sigmoid, got 'tanh'"):
        FusedSwiglu(n=4, activation="tanh")


@pytest.mark.parametrize("n", [0, -5])
def test_no_elements_are_refused(n: int) -> None:
    with pytest.raises(ArgumentError, match=r"silu: n must be an integer, 1 or more, got"):
        Silu(n=n)


def test_work_counts_every_array_once() -> None:
    assert FusedSwiglu(n=100).work().bytes == 3 * 100 * F32.bytes
    assert AddInPlace(n=100).work().bytes == 3 * 100 * F32.bytes  # x is read and written
