"""advance_position: one step, the end of the context, and a step too many."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter
from ptxgen.kernels.registry import find
from ptxgen.kernels.token.advance_position import AdvancePosition
from tests.ptxgen.kernels.checking import run


def after(position: int, max_len: int, length: int = 7) -> tuple[int, int]:
    """Position and length after a step, whatever the length was."""
    arguments = {"position": np.array([position], np.uint32), "length": np.array([length], np.uint32)}
    results = run(AdvancePosition(max_len=max_len), arguments)
    return int(results["position"][0]), int(results["length"][0])


def test_steps_count_up_and_the_length_includes_the_position() -> None:
    assert after(0, 100) == (1, 2)
    assert after(41, 100) == (42, 43)
    assert after(97, 100) == (98, 99)


def test_the_last_position_has_the_whole_length() -> None:
    assert after(98, 100) == (99, 100)


@pytest.mark.parametrize("position", [99, 100, 101, 2**31, 2**32 - 1])
def test_a_step_too_many_ends_past_the_last_position_with_the_whole_length(position: int) -> None:
    assert after(position, 100) == (100, 100)


@pytest.mark.parametrize("position", [2**32 - 3, 2**32 - 2, 2**32 - 1])
def test_the_largest_context_does_not_wrap_around(position: int) -> None:
    assert after(position, 2**32 - 1) == (min(position + 1, 2**32 - 1), 2**32 - 1)


def test_after_a_step_too_many_the_cache_is_not_overwritten() -> None:
    scatter = KvCacheScatter(indirect=True, kv_heads=2, head_dim=32, max_len=4)
    arguments = scatter.inputs(np.random.default_rng(1))
    position, _ = after(3, scatter.max_len)
    results = run(scatter, arguments | {"position": np.array([position], np.uint32)})
    for name in ("k_cache", "v_cache"):
        assert results[name].tobytes() == arguments[name].tobytes()


@pytest.mark.parametrize("max_len", [0, -1, 2**32])
def test_an_impossible_context_is_refused_by_name(max_len: int) -> None:
    with pytest.raises(ArgumentError, match="advance_position: max_len must be"):
        find("advance_position").make(max_len=max_len)
