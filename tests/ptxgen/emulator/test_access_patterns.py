"""A load gives each lane what is at its own address, whichever quick way the pattern of addresses takes."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.emulator import run

LANE = np.arange(32)
PATTERNS = {
    "consecutive": LANE,
    "one address": np.full(32, 5),
    "half-warps that run": LANE % 16 + LANE // 16 * 20,
    "half-warps that run over the same": LANE % 16,
    "half-warps on one address each": LANE // 16 * 9 + 3,
    "one half runs, one stands still": np.r_[0:16, [40] * 16],
    "nearly a run": np.where(LANE == 31, 7, LANE),
    "nearly runs in both halves": np.where(LANE == 15, 0, LANE % 16),
    "backwards": 31 - LANE,
    "every third": LANE * 3 % 64,
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("active", [32, 16, 7])
def test_each_lane_loads_its_own_element(kind: str, pattern: np.ndarray, active: int) -> None:
    dtype = np.dtype(f"u{int(kind[1:]) // 8}")
    register = "u16" if kind == "u8" else kind
    text = f"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry pick(.param .u64 y, .param .u64 x, .param .u64 at)
{{
    .reg .pred %p0;
    .reg .u32 %r<3>;
    .reg .{register} %v0;
    .reg .u64 %rd<7>;
    ld.param.u64 %rd0, [y];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [at];
    mov.u32 %r0, %laneid;
    setp.ge.u32 %p0, %r0, {active};
    @%p0 bra done;
    mad.wide.u32 %rd3, %r0, 4, %rd2;
    ld.global.u32 %r1, [%rd3];
    mad.wide.u32 %rd4, %r1, {dtype.itemsize}, %rd1;
    ld.global.{kind} %v0, [%rd4];
    mad.wide.u32 %rd5, %r0, {dtype.itemsize}, %rd0;
    st.global.{kind} [%rd5], %v0;
done:
    ret;
}}
"""
    x = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 64, dtype=dtype)
    y = np.zeros(32, dtype)
    assert not run(text, "pick", 1, 32, [y, x, pattern.astype(np.uint32)])
    assert np.array_equal(y, np.where(active > LANE, x[pattern], 0).astype(dtype))
