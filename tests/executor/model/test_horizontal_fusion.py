"""A profile whose products of the same activations go in one launch: q, k and v, and gate and up. Same bits, fewer launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.choice.choice import GpuProfile
from tests.executor.model.one_row import logits_and_plans
from tests.switched import switched
from tests.synthetic import Q, write_model

TOKENS = [3, 17, 101, 44, 9]
CONTEXT = 64
JOINED = "joined_hw_dp4a_q4k_gemv"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "llama", Q.Q4_K, layers=2, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT)


def decoded(path: Path, profile: GpuProfile) -> tuple[bytes, list[list[str]]]:
    """The logits of a sequence and of a step of one row, and what each launches in its first layer."""
    logits, both = logits_and_plans(path, profile, TOKENS, CONTEXT, sanitize=True)
    of_layer = [[plan for plan in plans if plan.place.layer == 0 and "w" in plan.kernel.signature()] for plans in both]
    return logits, [[f"{plan.place.operation} {plan.kernel.name}" for plan in plans] for plans in of_layer]


@pytest.mark.parametrize("dependent", [False, True])
def test_a_token_has_the_bits_of_launches_for_each_matrix(path: Path, dependent: bool) -> None:
    apart, of_each = decoded(path, switched(GpuProfile(), dependent_launches=dependent))
    together, joined = decoded(path, switched(GpuProfile().with_rules("horizontal_fusion"), dependent_launches=dependent))
    assert together == apart
    products = "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"
    for launches in of_each:
        assert [launch.split()[0] for launch in launches] == list(products)
    for launches in joined:
        residual = "hw_dp4a_q4k_gemv_residual"
        assert launches == [
            f"attn_q+attn_k+attn_v {JOINED}", f"attn_output {residual}", f"ffn_gate+ffn_up {JOINED}", f"ffn_down {residual}",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("types", "launches"),
    [
        ({"attn_v": Q.Q6_K, "": Q.Q4_K}, ["attn_q+attn_k+attn_v mixed_hw_dp4a_q4k_q6k_gemv"]),
        ({"attn_k": Q.Q6_K, "attn_v": Q.Q8_0, "": Q.Q4_K}, ["attn_q hw_dp4a_q4k_gemv", "attn_k hw_dp4a_q6k_gemv"]),
        ({"attn_k": Q.Q6_K, "": Q.Q4_K}, [f"attn_q+attn_v {JOINED}", "attn_k hw_dp4a_q6k_gemv"]),
    ],
)
def test_matrices_of_several_formats_are_fused_where_two_are_alike(
    types: dict[str, Q], launches: list[str], tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", types, layers=1, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT)
    (apart, _), (together, joined) = (
        decoded(path, switched(GpuProfile(), horizontal_fusion=switch)) for switch in (False, True)
    )
    assert together == apart
    assert joined[0][: len(launches)] == launches
