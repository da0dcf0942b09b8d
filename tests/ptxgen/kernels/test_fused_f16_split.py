"""Kernels that pack their own result: the very bits of the separate kernels run one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.errors import ArgumentError
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.attention.f16_split import F16SplitOutput
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.norm import split_rows
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.quantize.f16_split import STEPS, pack
from ptxgen.kernels.quantize.f16_split_bounds import f16_split_bounds
from tests.ptxgen.kernels.checking import run

FORM: dict[str, Any] = {"parts": 2, "lane_run": 64}


def assert_packed(results: dict[str, NDArray[Any]], y: NDArray[Any], form: HalfForm) -> None:
    """That `results` has y, and its halves, bit for bit."""
    assert results["y"].tobytes() == y.tobytes()
    for name, values in pack(y, form)._asdict().items():
        assert results[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize(("hidden", "m", "many"), [(1312, 3, 128), (256, 9, 128), (4356, 3, 1), (4096, 8, 1)])
def test_rmsnorm_with_f16_split_is_rmsnorm_and_then_the_f16_split(
    hidden: int, m: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(split_rows, "MANY_ROWS", many)
    kernel = RmsNorm(hidden=hidden, m=m, **FORM)
    given = kernel.inputs(np.random.default_rng(hidden))
    given["x"][0, :256] = 0.0
    given["x"][1, 70] = np.nan
    given["x"][2, :128] *= np.float32(2.0**-130)
    norm = RmsNorm(hidden=hidden, m=m)
    assert_packed(run(kernel, given), run(norm, {name: given[name] for name in norm.signature()})["y"], HalfForm(**FORM))


@pytest.mark.parametrize(("n", "m", "lane_run"), [(576, 5, 64), (576, 33, 64), (256, 40, 4)])
def test_swiglu_with_f16_split_is_swiglu_and_then_the_f16_split(n: int, m: int, lane_run: int) -> None:
    kernel = FusedSwiglu(n=n, m=m, parts=2, lane_run=lane_run)
    given = kernel.inputs(np.random.default_rng(7))
    given["gate"][0, :256] = 0.0
    given["up"][1, n - 9], given["gate"][2, n - 1] = np.inf, np.nan
    y = run(FusedSwiglu(n, m=m), {"y": np.zeros((m, n), np.float32), "gate": given["gate"], "up": given["up"]})["y"]
    assert_packed({"y": y, **run(kernel, given)}, y, HalfForm(2, lane_run))


def test_attention_with_f16_split_is_attention_and_then_the_f16_split() -> None:
    part = PagedAttentionReduce(rows=3, heads=3, head_dim=128, max_len=64, splits=2, least=32)
    kernel = replace(part, output=F16SplitOutput(**FORM))
    given = kernel.inputs(np.random.default_rng(6))  # the last row is idle
    given["weighted"][0, 1, 1, 90] = np.nan
    given["position"][0] = 63
    out, results = run(part, {name: given[name] for name in part.signature()})["out"], run(kernel, given)
    assert results.pop("out").tobytes() == out.tobytes()
    assert_packed({"y": out.reshape(3, -1), **results}, out.reshape(3, -1), HalfForm(**FORM))


def test_nearly_all_f16_parts_of_nearly_exact_values_must_be_exact() -> None:
    x = np.random.default_rng(4).standard_normal((8, 512))
    bounds = f16_split_bounds(x, np.abs(x) * 2.0**-22, HalfForm(2, 64))
    high, low = bounds["halves"][:, :, :STEPS, 0], bounds["halves"][:, :, :STEPS, 1]
    assert (high == 0).mean() > 0.99
    assert (low[high == 0] <= 2.0**-11).mean() > 0.99
    assert not bounds["scales"].any()


def test_bounds_hold_for_values_anywhere_within_theirs() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((8, 512)) * 2.0 ** rng.integers(-3, 3, (8, 512))
    x[0, :256], x[1, 5] = 0.0, 8.0 - 1e-7  # the scale may be either of two
    bound = np.abs(x) * 1e-6 + 1e-9
    form = HalfForm(2, 4)
    allowed, exact = f16_split_bounds(x, bound, form), pack(x, form)
    for share in (-0.9, 0.9, *0.9 * rng.uniform(-1.0, 1.0, (4, 8, 512))):
        near = pack(x + share * bound, form)  # rounded to f32, too
        for name in ("halves", "scales"):
            off = np.abs(getattr(near, name).astype("f8") - getattr(exact, name).astype("f8"))
            assert (off <= allowed[name]).all(), name


def test_an_impossible_form_is_refused() -> None:
    with pytest.raises(ArgumentError, match="parts 1 or 2, got 3"):
        FusedSwiglu(n=256, m=1, parts=3, lane_run=4)
    with pytest.raises(ArgumentError, match="batched_rmsnorm_halves: hidden must be a multiple of 4"):
        RmsNorm(hidden=254, m=1, **FORM)
    with pytest.raises(ArgumentError, match=r"head_dim must be one of \(128, 256\), got 64"):
        PagedAttentionReduce(rows=1, heads=4, head_dim=64, max_len=64, output=F16SplitOutput(**FORM))
