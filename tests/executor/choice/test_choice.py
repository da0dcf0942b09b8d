"""The profile: precisions, kernels that the user names, and what was measured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from executor.base.rules import RULES
from executor.choice.choice import GpuProfile
from executor.choice.table import TuningEntry, TuningTable
from executor.device.gpu import GpuModel
from executor.launch.modules import Modules
from executor.layers.projection import of_rank
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS, REPACKED
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.mwv import MwvGemv

Q4_K = FORMATS["Q4_K"]


def test_the_environment_says_precision_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_PRECISION", "fast")
    monkeypatch.setenv("PTXGEN_GEMV_Q4K", "mwv_q4k_gemv:num_warps=8")
    monkeypatch.setenv("PTXGEN_GEMV_Q8_0", "0")
    profile = GpuProfile.from_environment()
    assert profile == GpuProfile("fast", {"q4k": "mwv_q4k_gemv:num_warps=8"})
    assert str(profile.choose(Q4_K, 4096, 64).kernel).startswith("mwv_q4k_gemv(k=4096, n=64, num_warps=8, ")
    assert "digits=1" in str(profile.choose(FORMATS["Q8_0"], 4096, 64).kernel)


def test_equal_profiles_are_equal_and_hash_alike() -> None:
    one, other = (GpuProfile("fast", {"q4k": "q4k_gemv"}) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != GpuProfile("accurate", {"q4k": "q4k_gemv"})
    assert one != GpuProfile("fast")


@pytest.mark.parametrize(
    ("precision", "gemv", "said"),
    [
        ("exact", {}, "precision is 'exact'; known: accurate, fast"),
        ("fast", {"q9": "my_q9_gemv"}, r"a GEMV for 'q9', which is not a format; formats: f32, f16, .*q4k"),
        ("fast", {"q4k": "q4k_gemv:k"}, "'k' is not parameter=value"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(precision: str, gemv: dict[str, str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        GpuProfile(precision, gemv)


def test_a_parameter_that_the_named_kernel_does_not_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match="q4k_gemv has no parameter 'num_warps'"):
        GpuProfile(gemv={"q4k": "q4k_gemv:num_warps=8"}).choose(Q4_K, 4096, 64)


def test_matrices_are_repacked_if_the_profile_says_so() -> None:
    aligned = REPACKED["Q6_K_ALIGNED"]
    assert GpuProfile().at_load(FORMATS["Q6_K"], 256) is FORMATS["Q6_K"]
    assert GpuProfile().with_rules("repack").at_load(FORMATS["Q6_K"], 256) is aligned
    assert GpuProfile().with_rules("repack").at_load(Q4_K, 256) is Q4_K
    made = [GpuProfile().with_rules("repack").at_load(FORMATS["Q8_0"], k).name for k in (256, 896, 3584)]
    assert made == ["Q8_0_ALIGNED", "Q8_0", "Q8_0_ALIGNED"]
    named = GpuProfile(gemv={"q6k_aligned": "hw_dp4a_q6k_aligned_gemv:digits=2"}).with_rules("repack")
    assert "digits=2" in str(named.choose(aligned, 4096, 64).kernel)
    with pytest.raises(ArgumentError, match=r"a GEMV for 'q6k', but repacks Q6_K; name one for 'q6k_aligned'"):
        GpuProfile(gemv={"q6k": "mwv_q6k_gemv"}).with_rules("repack")
    with pytest.raises(ArgumentError, match=r"a GEMV for 'q8_0', but repacks Q8_0; name one for 'q8_0_aligned'"):
        GpuProfile(gemv={"q8_0": "mwv_q8_0_gemv"}).with_rules("repack")


def test_the_environment_says_whether_matrices_are_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not GpuProfile.from_environment().allows("repack")
    monkeypatch.setenv("PTXGEN_REPACK", "1")
    assert GpuProfile.from_environment() == GpuProfile().with_rules("repack")


def test_a_bundle_has_the_plain_form_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in RULES.values():
        monkeypatch.setenv(rule.variable.name, "1")
    monkeypatch.setenv("PTXGEN_GEMV_Q6K", "mwv_q6k_gemv")  # of blocks that are not repacked here
    bundled = cast(Modules, SimpleNamespace(bundle=SimpleNamespace(precision="fast")))
    assert GpuProfile.for_modules(bundled) == GpuProfile("fast", {"q6k": "mwv_q6k_gemv"}).with_rules("batch_invariant")


def test_turns_are_of_the_shape_that_was_measured_alone() -> None:
    """Another shape may have too few rows, or activations that do not fit shared memory at once."""
    gpu = GpuModel("a GPU", "sm_90", 132)
    settings = {"num_warps": 4, "rows_per_warp": 4, "row_groups": 8}
    entry = TuningEntry("accurate", "q4k", 4096, 4096, "hw_dp4a_q4k_gemv", settings)
    profile = GpuProfile(tables=(TuningTable("a test", gpu, (entry,), shipped=True),))
    chosen = {(k, n): profile.choose(Q4_K, k, n).kernel.parameters() for k, n in ((4096, 4096), (4096, 4), (28672, 4096))}
    assert [one["row_groups"] for one in chosen.values()] == [8, 1, 1]
    assert all(one["rows_per_warp"] == 4 for one in chosen.values())


def test_a_named_kernel_that_a_matrix_cannot_have_says_which_matrix() -> None:
    profile = GpuProfile(gemv={"q4k": "hw_dp4a_q4k_gemv:row_groups=4"})
    assert profile.choose(Q4_K, 4096, 64).kernel.parameters()["row_groups"] == 4
    said = (
        "the profile names hw_dp4a_q4k_gemv:row_groups=4 for Q4_K, of which there are 64 x 28672: .*row_groups must be 1 where"
    )
    with pytest.raises(ArgumentError, match=said):
        profile.choose(Q4_K, 28672, 64)


def test_a_part_of_a_matrix_takes_no_turns() -> None:
    whole = HwDp4aGemv(Q4_K, k=4096, n=64, digits=3, row_groups=8)
    assert of_rank(whole, 4) == HwDp4aGemv(Q4_K, k=4096, n=16, digits=3)
    mwv = MwvGemv(Q4_K, k=4096, n=64, num_warps=4)
    assert of_rank(mwv, 4) == replace(mwv, n=16)


def test_a_measurement_from_before_a_parameter_is_replaced() -> None:
    old = TuningEntry("accurate", "q4k", 4096, 64, "hw_dp4a_q4k_gemv", {"num_warps": 4}, seconds=4e-6)
    new = replace(old, parameters={"num_warps": 4, "row_groups": 1, "ahead": 2}, seconds=6e-6)
    table = TuningTable("a test", GpuModel("a GPU", "sm_90", 132), (old,))
    assert table.with_entry(new).entries == (new,)
    assert len(table.with_entry(replace(new, parameters={"num_warps": 4, "row_groups": 2})).entries) == 2


def test_a_table_says_row_groups_for_no_shape_but_one() -> None:
    entry = {"precision": "accurate", "format": "q4k", "k": 4096, "kernel": "hw_dp4a_q4k_gemv", "parameters": {"row_groups": 2}}
    gpu = {"name": "a GPU", "target": "sm_90", "multiprocessors": 132}
    facts = {"format": "ptxgen tuning table", "version": 1, "gpu": gpu}
    table = TuningTable.from_json("a file", facts | {"entries": [entry | {"n": 64}]})
    assert table.entries[0].parameters == {"row_groups": 2}
    with pytest.raises(ArgumentError, match="sets row_groups for any n; it is of one shape"):
        TuningTable.from_json("a file", facts | {"entries": [entry | {"n": "any"}]})
    with pytest.raises(ArgumentError, match=r"a file: entry 1 hw_dp4a_q4k_gemv has no parameter 'turns'; it has .*row_groups"):
        TuningTable.from_json("a file", facts | {"entries": [entry | {"n": 64, "parameters": {"turns": 2}}]})
