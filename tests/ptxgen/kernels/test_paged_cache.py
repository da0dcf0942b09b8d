"""What a paged cache holds: GGML's very blocks, and rows that NumPy finds where the tables say."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from ptxgen.kernels.attention.kv_type import KV_TYPES


def test_q8_0_is_what_ggml_makes_of_the_values() -> None:
    x = (
        np.random.default_rng(1).normal(size=(200, 64)).astype(np.float32)
        * np.float32(10.0) ** np.arange(-5, 5).repeat(20)[:, None]
    )
    x[0], x[1, :32] = 0.0, [0.5, -0.5, 1.5, -2.5, 127.0, *range(27)]  # halves, at a scale of 1
    codes, scales = KV_TYPES["q8_0"].encode(x)
    blocks = quantize(x, GGMLQuantizationType.Q8_0).reshape(-1, 34)
    assert codes.tobytes() == blocks[:, 2:].tobytes()
    assert scales.tobytes() == blocks[:, :2].tobytes()


def test_q8_0_of_what_ggml_leaves_open_is_zero_or_nan() -> None:
    x = np.full((4, 32), 1.0, np.float32)
    x[0], x[1, 3], x[2, 3] = 1e-40, np.nan, np.inf
    kv = KV_TYPES["q8_0"]
    codes, scales = kv.encode(x)
    assert not codes[:3].any()
    values = kv.decode((codes, scales))
    assert not values[0].any()
    assert np.isnan(values[1:3]).all()
    assert np.allclose(values[3], 1.0, rtol=2**-11)


@pytest.mark.parametrize(("name", "bytes"), [("f32", 512), ("f16", 256), ("q8_0", 136)])
def test_a_row_has_as_many_bytes_as_its_parts(name: str, bytes: int) -> None:
    parts = KV_TYPES[name].encode(np.ones((1, 128), np.float32))
    assert KV_TYPES[name].row_bytes(128) == bytes == sum(part.nbytes for part in parts)
