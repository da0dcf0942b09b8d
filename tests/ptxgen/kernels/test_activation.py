"""Element-wise kernels: in place where they say so, and right in the tails."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.activation.elementwise import AddInPlace, Elementwise, ElementwiseMul, Gelu, Silu
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


def test_swiglu_is_silu_times_up_to_the_bit() -> None:
    kernel = FusedSwiglu(n=300)
    arguments = kernel.inputs(np.random.default_rng(2))
    silu = run(Silu(n=300), {"y": arguments["y"], "x": arguments["gate"]})["y"]
    assert run(kernel, arguments)["y"].tobytes() == (silu * arguments["up"]).tobytes()


@pytest.mark.parametrize("n", [0, -5])
def test_no_elements_are_refused(n: int) -> None:
    with pytest.raises(ArgumentError, match=r"silu: n must be an integer, 1 or more, got"):
        Silu(n=n)


def test_work_counts_every_array_once() -> None:
    assert FusedSwiglu(n=100).work().bytes == 3 * 100 * F32.bytes
    assert AddInPlace(n=100).work().bytes == 3 * 100 * F32.bytes  # x is read and written
