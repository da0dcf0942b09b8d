"""The norm of heads, the rotation and the write into the cache in one launch: with the bits of the kernels it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.rope_scatter import NORMED, RopeScatter, can_norm
from ptxgen.kernels.registry import find
from tests.ptxgen.kernels.checking import check, run

NAME = "norm_rope_neox_scatter_indirect"


def made(**shape: int) -> RopeScatter:
    kernel = find(NAME).make(**{"heads": 6, "kv_heads": 3, "head_dim": 64, "max_len": 5, **shape})
    assert isinstance(kernel, RopeScatter)
    return kernel


def at(kernel: RopeScatter, position: int) -> dict[str, Any]:
    """Random arguments, at this position; the cache holds NaN elsewhere, as fresh memory may."""
    arguments = kernel.inputs(np.random.default_rng(4)) | {"position": np.array([position], np.uint32)}
    for name in ("k_cache", "v_cache"):
        arguments[name][:] = np.nan
    return arguments


@pytest.mark.parametrize(
    ("position", "shape"),
    [
        (0, {}),
        (4, {"head_dim": 128, "heads": 16, "kv_heads": 8}),
        (2, {"heads": 3, "kv_heads": 1, "head_dim": 192}),
        (1, {"head_dim": 256}),
    ],
    ids=str,
)
def test_the_bits_are_those_of_the_separate_kernels(position: int, shape: dict[str, int]) -> None:
    kernel = made(**shape)
    arguments = at(kernel, position)
    apart = dict(arguments)
    for name in NORMED:
        norm = find("per_head_rmsnorm").make(heads=len(arguments[name]), head_dim=kernel.head_dim)
        apart[name] = run(norm, {"x": arguments[name], "gamma": apart.pop(f"{name}_gamma"), "eps": arguments["eps"]})["x"]
    del apart["eps"]
    rest = {"kv_heads": kernel.kv_heads, "head_dim": kernel.head_dim, "max_len": kernel.max_len}
    expected = run(find("rope_neox_scatter_indirect").make(heads=kernel.heads, **rest), apart)
    together = check(kernel, arguments)
    assert set(together) == set(expected) == {"q", "k", "k_cache", "v_cache"}
    for name, result in together.items():
        assert result.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("position", [5, 2**31, 2**32 - 1])
def test_a_position_past_the_cache_changes_nothing(position: int) -> None:
    kernel = made()
    arguments = at(kernel, position)
    for name, result in check(kernel, arguments).items():
        assert result.tobytes() == arguments[name].tobytes(), name


@pytest.mark.parametrize(
    "shape", [{"head_dim": 96}, {"head_dim": 32}, {"head_dim": 320}, {"head_dim": 128, "rotary_dim": 64}], ids=str
)
def test_heads_of_which_no_lane_has_both_of_a_pair_are_refused(shape: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=f"{NAME}.* head"):
        made(**shape)
    rotary_dim = shape.get("rotary_dim", shape["head_dim"])
    assert not can_norm(neox=True, head_dim=shape["head_dim"], rotary_dim=rotary_dim)


def test_the_style_of_llama_and_biases_are_refused() -> None:
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 64, "max_len": 3}
    for neox, bias in ((False, False), (True, True)):
        with pytest.raises(ArgumentError, match="in the style of neox and adds no bias"):
            RopeScatter(neox, bias, **sizes, normed=True)
