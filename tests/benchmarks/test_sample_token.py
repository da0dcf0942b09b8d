"""A token's choice by its filters: tried on the emulator, whose times mean nothing."""

from __future__ import annotations

import pytest

from benchmarks.sample_token import DRAWS, timed
from executor.device import open_device

pytestmark = pytest.mark.usefixtures("shared_kernels")


def test_argmax_and_each_draw_is_timed() -> None:
    with open_device("emulator") as device:
        rows = list(timed(device, n=640, runs=1))
    assert [one["draws"] for one in rows] == ["argmax", *DRAWS]
    assert all(one["n"] == 640 and one["us"] > 0 for one in rows)
