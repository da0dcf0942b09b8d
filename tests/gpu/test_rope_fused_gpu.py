"""Attention that rotates and appends by itself, on a GPU: models have the bits of two launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.choice import attention as choice
from executor.device import Device
from tests.executor.model.test_rope_fused_attention import APART, ROTATING, SHORT, STYLES, decoded, made
from tests.switched import switched

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("arch", "shape", "style"), [*STYLES, ("llama", {"head_dim": 128}, "rope_")], ids=str)
@pytest.mark.parametrize("short", [SHORT, 512])
def test_a_token_has_the_bits_of_two_launches(
    arch: str, shape: dict[str, int], style: str, short: int, gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu.target.sm < 90:
        pytest.skip("merged attention needs sm_90")
    monkeypatch.setattr(choice, "TOKEN_SHORT", short)
    monkeypatch.setattr(choice, "TOKEN_LEAST", 32)
    path = made(tmp_path, arch, **shape)
    apart, _ = decoded(path, APART.with_rules("dependent_launches"), gpu)
    together, names = decoded(path, ROTATING.with_rules("dependent_launches"), gpu)
    assert names[0].startswith(style)
    assert together == apart


@pytest.mark.parametrize(("arch", "shape", "style"), STYLES, ids=str)
def test_what_earlier_steps_left_is_there_before_it_has_waited(
    arch: str, shape: dict[str, int], style: str, gpu: Device, tmp_path: Path
) -> None:
    """With joined products it waits for one launch alone, so it starts while that runs."""
    if gpu.target.sm < 90:
        pytest.skip("programmatic dependent launch needs sm_90")
    path = made(tmp_path, arch, **{**shape, "layers": 12})
    waiting, dependent = (
        [
            decoded(path, switched(ROTATING.with_rules("horizontal_fusion"), dependent_launches=dependent), gpu)[0]
            for _ in range(rounds)
        ]
        for dependent, rounds in ((False, 1), (True, 5))
    )
    assert dependent == 5 * waiting
