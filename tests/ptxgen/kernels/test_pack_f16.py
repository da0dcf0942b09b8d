"""Activation halves: the kernel has the very bits of `pack`, whose values are as near to f32 as it says and stand where a
tensor core's fragment takes them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.errors import ArgumentError
from ptxgen.kernels.quantize.f16_split import LEAST_SCALE, STEPS, WINDOW, pack, sums_of, values
from ptxgen.kernels.quantize.pack_f16 import PackF16
from tests.ptxgen.kernels.running import emulate

FORMS = [HalfForm(parts, lane_run) for parts in (1, 2) for lane_run in (4, 64)]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.parts}-{form.lane_run}")

ROWS, K = 11, 3 * WINDOW - 64


def any_bits(rng: np.random.Generator) -> NDArray[np.float32]:
    """Of windows of any size: subnormals, infinities and NaN among them."""
    x = np.frombuffer(rng.bytes(4 * ROWS * K), np.float32).reshape(ROWS, K).copy()
    x[::2] = np.ldexp(rng.uniform(-1.0, 1.0, x[::2].shape), rng.integers(-150, 128, (len(x[::2]), 1))).astype(np.float32)
    x[2, :WINDOW] = 0.0
    x[4, WINDOW : 2 * WINDOW] = np.float32(1e-45)
    return x


@every_form
def test_the_kernel_has_the_bits_of_pack(form: HalfForm) -> None:
    kernel = PackF16(m=ROWS, k=K, parts=form.parts, lane_run=form.lane_run)
    rng = np.random.default_rng(form.parts)
    x = any_bits(rng)
    results, _ = emulate(kernel, {**kernel.inputs(rng), "x": x})
    wanted = pack(x, form)
    assert np.array_equal(results["halves"].view(np.uint16), wanted.halves.view(np.uint16))
    assert np.array_equal(results["scales"].view(np.uint32), wanted.scales.view(np.uint32))


@every_form
def test_values_are_as_near_as_the_parts_say(form: HalfForm) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((ROWS, K)) * np.ldexp(1.0, rng.integers(-126, 120, (ROWS, 1)))).astype(np.float32)
    halves, scales = pack(x, form)
    grain = np.repeat(scales.astype("f8"), WINDOW, axis=1)[:, :K] * 2.0**-25
    assert (np.abs(values(halves, scales, form, K) - x) <= np.maximum(np.abs(x) * 2.0 ** (-11 * form.parts), grain)).all()


@every_form
def test_a_lane_has_its_own_values_in_order(form: HalfForm) -> None:
    # Small whole numbers: the scale is one half of a power of two, and all is exact.
    x = np.arange(2 * WINDOW, dtype=np.float32).reshape(1, -1)
    halves, scales = pack(x, form)
    for window in range(2):
        ratios = halves[0, window].astype("f8").sum(axis=1) * scales[0, window]
        for t in range(4):
            lane = ratios[:STEPS, :, 0, 2 * t : 2 * t + 2].transpose(0, 2, 1).reshape(-1)  # by step, u and c: c + 2 u
            starts = 64 * t + np.arange(0, 64, 4) if form.lane_run == 64 else 16 * np.arange(STEPS) + 4 * t
            places = (starts[:, None] + np.arange(4)).reshape(-1)
            assert np.array_equal(lane, x[0, WINDOW * window + places])


@every_form
def test_the_last_step_has_the_sums_of_sixteen(form: HalfForm) -> None:
    x = np.random.default_rng(3).integers(-20, 20, (ROWS, K)).astype(np.float32)
    halves, scales = pack(x, form)
    assert np.array_equal(sums_of(halves, scales)[:, : K // 16], x.reshape(ROWS, -1, 16).sum(axis=-1))
    assert not sums_of(halves, scales)[:, K // 16 :].any()


def test_scales_are_powers_of_two_that_bring_the_peak_below_1024() -> None:
    peaks = np.array([1.0, 1.5, 1024.0, 3.4e38, 2.0**-126, 1e-45, 0.0], np.float32)
    x = np.zeros((len(peaks), WINDOW), np.float32)
    x[:, 17] = peaks
    scales = pack(x, HalfForm(2, 64)).scales[:, 0]
    assert scales.tolist() == [2.0**-9, 2.0**-9, 2.0, 2.0**118, LEAST_SCALE, LEAST_SCALE, 1.0]


@pytest.mark.parametrize("name", ["parts", "lane_run"])
def test_another_form_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} .* got 3"):
        PackF16(**{"m": 1, "k": 256, "parts": 2, "lane_run": 4, name: 3})
