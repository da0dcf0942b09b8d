"""persistent_layer: the bits of the kernels that it stands for, whatever its grid, its pipeline, its formats and its digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import find as find_format
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.layer_steps import Arrays, one_by_one
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs


def on_emulator(kernel: KernelType, given: dict[str, Any]) -> Arrays:
    results, _ = emulate(kernel, inputs(kernel) | given, sanitize=False)
    return results


MATRICES = ("attn_output", "ffn_gate", "ffn_down", "attn_q", "attn_k", "attn_v")


def of_format(name: str, **settings: Any) -> PersistentLayer:
    """A layer whose matrices are all of one format: rows of a few steps, the last of which is not whole."""
    size = max(find_format(name).block, 32)
    k = 3 * size if size > 32 else 1056
    shape: dict[str, Any] = {**dict.fromkeys(MATRICES, name), "queries": 33, "keys": 5, "blocks": 2, "num_warps": 8, **settings}
    return PersistentLayer(k, 2 * size, 5 * size, **shape)


def same_bits(kernel: PersistentLayer, *, sanitize: bool = False, seed: int | None = None) -> None:
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments, sanitize=sanitize, seed=seed)
    assert not findings
    assert_matches_reference(kernel, arguments, results)
    for name, expected in one_by_one(kernel, arguments, on_emulator).items():
        assert results[name].tobytes() == expected.tobytes(), name
    assert not results["arrivals"].any()


@pytest.mark.parametrize(
    "names",
    [
        ("Q4_0", "Q4_1", "Q5_1", "Q2_K", "Q3_K", "Q5_K"),
        ("Q2_K", "Q5_K", "IQ4_XS", "MXFP4", "Q6_K_ALIGNED", "Q4_0"),
        ("Q3_K", "IQ4_XS", "MXFP4", "Q4_1", "Q5_1", "Q6_K_ALIGNED"),
        ("Q8_0_ALIGNED", "Q8_0", "Q8_0_ALIGNED", "Q4_K", "Q8_0", "Q8_0_ALIGNED"),
        pytest.param(("IQ3_XXS", "NVFP4", "TQ1_0", "Q1_0", "IQ1_M", "IQ2_XS"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_a_layer_of_any_formats_has_the_bits_of_its_kernels_one_by_one(names: Sequence[str]) -> None:
    """Each format twice, in stages of other sizes and beside others."""
    formats: dict[str, Any] = dict(zip(MATRICES, names, strict=True))
    same_bits(PersistentLayer(512, 768, 1280, **formats, queries=33, keys=5, blocks=2, num_warps=8))


@pytest.mark.parametrize(
    "settings",
    [
        {"blocks": 1},
        {"blocks": 7, "rows_per_warp": 2, "pipeline_stages": 2},  # nothing is under way while rows are multiplied
        {"num_warps": 16, "rows_per_warp": 3, "pipeline_stages": 5},
        {"gate_digits": 1, "down_digits": 2, "next_digits": 1, "attended_digits": 1},
        {"queries": 0, "keys": 0, "attn_q": "", "attn_k": "", "attn_v": ""},  # the last layer
        {"keys": 0, "attn_k": "", "attn_v": ""},  # an output head alone
        {"attn_v": "Q8_0", "ffn_down": "Q6_K", "ffn": 14336},  # of formats in one stage that differ in all; a long row
    ],
    ids=lambda settings: "-".join(settings),
)
def test_a_layer_of_any_shape_has_the_bits_of_its_kernels_one_by_one(settings: dict[str, Any]) -> None:
    same_bits(replace(of_format("Q4_K"), **settings), seed=1)


def test_a_second_round_of_rows_may_start_anywhere_in_sixteen_bytes() -> None:
    same_bits(replace(of_format("MXFP4", blocks=3, rows_per_warp=2), ffn=32))  # 24 rows of 561 bytes before the other 8


def test_the_sanitiser_finds_nothing_in_blocks_that_wait_for_each_other() -> None:
    same_bits(next(iter(PersistentLayer.cases())), sanitize=True, seed=2)


def test_weights_are_asked_for_before_the_launch_before_has_ended() -> None:
    """Before it waits it copies the first segments, and touches nothing that is not constant."""
    text = emit(of_format("Q4_K"), Target(90), dependent=True).text
    before, after = text.split("griddepcontrol.wait")
    assert "cp.async.cg" in before
    for touched in ("ld.global", "st.global", "atom.", " red."):
        assert touched not in before
        assert touched in after


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ffn_gate": "F16"}, "F16 has no packed 8-bit codes"),
        ({"queries": 0}, "attn_q goes with queries"),
        ({"attn_v": ""}, "attn_k and attn_v with keys"),
        ({"num_warps": 4}, "num_warps must be a multiple of 8"),
        ({"pipeline_stages": 3}, "pipeline_stages must be an integer, 4..64, got 3"),
        ({"ffn": 100}, "ffn must be a multiple of 32"),
    ],
)
def test_what_no_layer_can_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace(of_format("Q4_K"), **changes)
