"""A profile whose token goes from the attention of one layer to that of the next by one launch: same bits, three launches a
layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executor.choice.choice import GpuProfile
from executor.choice.persistent import PersistentGrid, choose_persistent
from ptxgen.errors import ArgumentError
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from ptxgen.target import Target
from tests.executor.model.one_row import logits_and_plans
from tests.switched import switched
from tests.synthetic import Q, write_model

TOKENS = [3, 17, 101]
CONTEXT = 64
MIXED = {"attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "": Q.Q4_K}
ON = GpuProfile().with_rules("persistent_layers")


def decoded(path: Path, profile: GpuProfile, *, sanitize: bool = False) -> tuple[bytes, list[list[str]]]:
    """The logits of a sequence and of a step of one row, and what each launches between the embedding and the last norm."""
    logits, both = logits_and_plans(path, profile, TOKENS, CONTEXT, sanitize=sanitize)
    return logits, [[plan.kernel.name for plan in plans if plan.place.layer is not None] for plans in both]


def model(folder: Path, arch: str = "llama", **shape: int) -> Path:
    sizes: dict[str, Any] = {"layers": 2, "hidden": 512, "heads": 4, "kv_heads": 2, "ff": 512, "context": CONTEXT, **shape}
    return write_model(folder / "m.gguf", arch, MIXED, **sizes)


@pytest.mark.parametrize("dependent", [False, True])
def test_a_token_has_the_bits_of_a_launch_for_each_operation(tmp_path: Path, dependent: bool) -> None:
    path = model(tmp_path)
    apart, _ = decoded(path, switched(GpuProfile(), dependent_launches=dependent))
    staying, launches = decoded(
        path, switched(GpuProfile().with_rules("persistent_layers"), dependent_launches=dependent), sanitize=True
    )
    assert staying == apart
    first = ["rmsnorm_digits", "hw_dp4a_q4k_gemv", "hw_dp4a_q4k_gemv", "hw_dp4a_q6k_gemv"]
    for names in launches:
        assert names[: len(first)] == first
        assert [name for name in names[len(first) :] if name == "persistent_layer"] == ["persistent_layer"] * 2
        assert not [name for name in names[len(first) :] if "gemv" in name or "norm" in name or "swiglu" in name]


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])  # biases; norms of heads
def test_what_attention_adds_to_queries_and_keys_is_done_as_before(tmp_path: Path, arch: str) -> None:
    path = model(tmp_path, arch, layers=2)
    apart, _ = decoded(path, GpuProfile())
    staying, launches = decoded(path, ON)
    assert staying == apart
    assert all(names.count("persistent_layer") == 2 for names in launches)


def test_the_fast_precision_multiplies_outliers_by_as_many_planes_as_before(tmp_path: Path) -> None:
    path = model(tmp_path, layers=2)
    apart, _ = decoded(path, GpuProfile("fast"))
    staying, _ = decoded(path, GpuProfile("fast").with_rules("persistent_layers"))
    assert staying == apart


def test_a_layer_whose_profile_names_other_kernels_is_launched_one_by_one(tmp_path: Path) -> None:
    path, named = model(tmp_path, layers=1), {"q4k": "mwv_q4k_gemv"}
    apart, _ = decoded(path, GpuProfile(gemv=named))
    staying, launches = decoded(path, GpuProfile(gemv=named).with_rules("persistent_layers"))
    assert staying == apart
    assert not any("persistent_layer" in names for names in launches)


def layer(hidden: int, ffn: int) -> Callable[..., PersistentLayer]:
    q4_k = "Q4_K"
    return partial(PersistentLayer, hidden, hidden, ffn, q4_k, q4_k, q4_k, q4_k, q4_k, q4_k, queries=hidden, keys=512)


@pytest.mark.parametrize(
    ("sm", "hidden", "ffn", "settings"),
    [
        (90, 4096, 14336, (16, 4, 4)),
        (90, 3584, 18944, (16, 4, 4)),
        (80, 3584, 18944, (8, 4, 5)),
        (90, 8192, 28672, (16, 2, 3)),
        (80, 8192, 28672, (8, 2, 3)),
    ],
)
def test_a_kernel_gets_what_its_gpu_has_shared_memory_for(
    sm: int, hidden: int, ffn: int, settings: tuple[int, int, int]
) -> None:  # fmt: skip
    fitted = PersistentGrid(132, Target(sm)).fitted(layer(hidden, ffn))
    assert fitted.blocks == 132
    assert (fitted.num_warps, fitted.rows_per_warp, fitted.pipeline_stages) == settings
    assert fitted.runs_on(Target(sm))


def test_a_layer_that_does_not_fit_says_what_to_do() -> None:
    with pytest.raises(ArgumentError, match=r"needs more shared memory than the 101376 bytes .* persistent_layers off"):
        PersistentGrid(58, Target(89)).fitted(layer(3584, 18944))


def test_what_is_wrong_with_a_layer_but_its_room_is_said_as_it_is() -> None:
    with pytest.raises(ArgumentError, match="F16 has no packed 8-bit codes"):
        PersistentGrid(132, Target(90)).fitted(partial(PersistentLayer, 512, 512, 512, "Q4_K", "F16", "Q4_K"))


def test_an_old_gpu_is_refused() -> None:
    with pytest.raises(ArgumentError, match="persistent_layers needs sm_80, this is sm_75"):
        choose_persistent(ON, Target(75), 40)
