"""A profile whose norms are no launches: the product before leaves the digits of gamma x, those behind complete it. And one
whose gate, up and SwiGLU are one launch. Same bits, fewer launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.choice.choice import GpuProfile
from executor.layers.graph.neighbours import _between
from executor.layers.graph.products import _pipelined
from ptxgen.kernels.compose import borrowed
from ptxgen.kernels.gemv import suited
from tests.executor.model.one_row import logits_and_plans
from tests.switched import switched
from tests.synthetic import Q, write_model

TOKENS = [3, 17, 101, 44, 9]
CONTEXT = 64
SIZES: dict[str, Any] = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ff": 512, "context": CONTEXT}
MIXED = {"attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "": Q.Q4_K}
NORMS = GpuProfile().with_rules("deferred_norms")
GATED = GpuProfile().with_rules("swiglu_fusion")
ALL = GpuProfile().with_rules("deferred_norms", "swiglu_fusion", "horizontal_fusion")
RINGS = GpuProfile().with_rules("deferred_norms", "swiglu_fusion", "horizontal_fusion", "weight_pipelines")
LEAVES, GATES = "hw_dp4a_q4k_gemv_residual_normed", "gated_hw_dp4a_q4k_gemv"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", "llama", Q.Q4_K, **SIZES)


def decoded(path: Path, profile: GpuProfile) -> tuple[bytes, list[list[str]]]:
    """The logits of a sequence and of a step of one row, and what each launches."""
    logits, both = logits_and_plans(path, profile, TOKENS, CONTEXT, sanitize=True)
    return logits, [[plan.kernel.name for plan in plans] for plans in both]


@pytest.mark.parametrize("profile", [NORMS, GATED, ALL, RINGS], ids=["norms", "gates", "all", "rings"])
@pytest.mark.parametrize("dependent", [False, True])
def test_a_token_has_the_bits_of_the_launches_one_by_one(path: Path, profile: GpuProfile, dependent: bool) -> None:
    apart, _ = decoded(path, switched(GpuProfile(), dependent_launches=dependent))
    fused, _ = decoded(path, switched(profile, dependent_launches=dependent))
    assert fused == apart


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_so_has_one_of_another_architecture_with_matrices_of_two_formats(architecture: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", architecture, MIXED, **SIZES)
    apart, _ = decoded(path, GpuProfile())
    fused, launches = decoded(path, ALL)
    assert fused == apart
    pipelined, _ = decoded(path, RINGS)
    assert pipelined == apart
    assert "rmsnorm_digits" in launches[0]  # of the first layer: nothing comes before it


@pytest.fixture
def all_ringed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small models have too few weights for rings of q, k and v."""
    monkeypatch.setattr(suited, "LEAST_RINGED", 0)
    caches = _pipelined, _between
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("all_ringed")
@pytest.mark.parametrize("precision", ["accurate", "fast"])
def test_so_have_rings_of_all_products(precision: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen2", MIXED, **SIZES)
    profile = replace(RINGS, precision=precision).with_rules("repack", "dependent_launches")
    pipelined, both = logits_and_plans(path, profile, TOKENS, CONTEXT, sanitize=True)
    apart, _ = decoded(path, GpuProfile(precision).with_rules("repack"))
    assert pipelined == apart
    kernels = {plan.kernel.name: plan.kernel for plan in both[0]}
    assert kernels["mixed_hw_dp4a_q4k_q6k_aligned_gemv"].parameters()["stages"] > 0


@pytest.mark.usefixtures("all_ringed")
@pytest.mark.parametrize("ranks", [1, 2])
def test_so_have_products_that_mind_the_launches_beside_them(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of small models ask for so little shared memory that they do not."""
    monkeypatch.setattr(suited, "HOLDING", 0)
    path = write_model(tmp_path / "m.gguf", "qwen2", MIXED, **SIZES)
    apart, _ = decoded(path, GpuProfile().with_rules("repack"))
    found = []
    for dependent in (True, False):
        profile = switched(RINGS.with_rules("repack"), dependent_launches=dependent)
        minding, both = logits_and_plans(path, profile, TOKENS, CONTEXT, sanitize=True, ranks=ranks)
        assert minding == apart
        settings = [plan.kernel.parameters() for plans in both for plan in plans if plan.kernel.parameters().get("stages")]
        found.append(any(one["holds_next"] for one in settings))
    assert found == [True, False]


def test_so_have_output_projections_that_ask_for_weights_of_gate_and_up(tmp_path: Path) -> None:
    """Where these load into registers: rows of more steps than are loaded ahead."""
    sizes = SIZES | {"hidden": 1280, "heads": 10}
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q8_0, **sizes)
    apart, _ = logits_and_plans(path, GpuProfile().with_rules("repack"), TOKENS[:2], CONTEXT, sanitize=True)
    for dependent in (True, False):
        asking, both = logits_and_plans(
            path, switched(RINGS.with_rules("repack"), dependent_launches=dependent), TOKENS[:2], CONTEXT, sanitize=True
        )  # fmt: skip
        assert asking == apart
        for plans in both:
            outputs = [i for i, plan in enumerate(plans) if plan.place.operation == "attn_output"]
            assert len(outputs) == SIZES["layers"]
            for i in outputs:
                assert (plans[i].kernel.parameters()["prefetches"] > 0) == dependent
                theirs = borrowed(plans[i].kernel)
                assert len(theirs) == 2 * dependent
                own, behind = plans[i].record.arguments, plans[i + 1].record.arguments
                assert all(own[name] is behind[other] for name, other in theirs.items())


def test_fast_with_outliers_has_them_too(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", MIXED, **SIZES)
    apart, _ = decoded(path, GpuProfile("fast"))
    fused, _ = decoded(path, GpuProfile("fast").with_rules("deferred_norms", "swiglu_fusion"))
    assert fused == apart


def test_the_first_norm_and_that_of_the_head_are_left_as_launches(path: Path) -> None:
    _, (token, step) = decoded(path, ALL)
    norms = [name for name in token if "rmsnorm" in name]
    assert norms == ["rmsnorm_digits"] * 2
    assert token.count(LEAVES) == 3
    assert token.count(GATES) == 2
    assert "fused_swiglu_digits" not in token
    assert step.count(LEAVES) == 3
    assert [name for name in step if "rmsnorm" in name] == ["rmsnorm_digits"] * 2


def test_weights_have_rings_where_the_profile_says_so(path: Path) -> None:
    for profile, expected in ((ALL, {LEAVES: {0}, GATES: {0}}), (RINGS, {LEAVES: {2}, GATES: {2}})):
        _, both = logits_and_plans(path, profile, TOKENS[:1], CONTEXT, sanitize=False)
        for plans in both:
            for name, rings in expected.items():
                assert {plan.kernel.parameters()["stages"] for plan in plans if plan.kernel.name == name} == rings
