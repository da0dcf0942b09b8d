"""Models that normalise the heads of queries and keys (qwen3): a token's are normalised, rotated and kept in one launch where
there is a kernel for such heads, with the bits of a launch each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from tests.executor.model.one_row import logits_and_plans
from tests.synthetic import Q, write_model


@pytest.mark.parametrize(
    ("head_dim", "launches"),
    [
        (64, ["rope_scatter norm_rope_neox_scatter_indirect"]),
        pytest.param(
            32,
            ["attn_q_norm per_head_rmsnorm", "attn_k_norm per_head_rmsnorm", "rope_scatter rope_neox_scatter_indirect"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_heads_are_normalised_with_their_rotation_where_they_can_be(tmp_path: Path, head_dim: int, launches: list[str]) -> None:
    path = write_model(
        tmp_path / "m.gguf", "qwen3", Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, head_dim=head_dim, ff=64, context=32
    )
    logits, (of_token, of_row) = logits_and_plans(path, GpuProfile(), [3, 17, 101], 32, sanitize=True)
    of_first, *_, of_the_row = np.frombuffer(logits, np.float32).reshape(4, -1)
    assert of_first.tobytes() == of_the_row.tobytes()
    names = ("attn_q_norm", "attn_k_norm", "rope_scatter")
    found, apart = (
        [f"{plan.place.operation} {plan.kernel.name}" for plan in plans if plan.place.operation in names]
        for plans in (of_token, of_row)
    )
    assert found == launches
    assert [launch.split()[0] for launch in apart] == list(names)
