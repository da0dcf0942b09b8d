"""A model that devices share gathers the digits of a row, not its values, where these are what is read: the bits of one device,
and no launch that makes digits or norms of what was gathered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor import CudaExecutor
from executor.base.errors import DeviceFailed
from executor.choice.choice import GpuProfile
from executor.device.several import SeveralDevices
from tests.executor.model.one_row import logits_and_plans
from tests.switched import switched
from tests.synthetic import Q, write_model

TOKENS = [3, 17, 101]
CONTEXT = 64
SIZES: dict[str, Any] = {
    "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "ff": 512, "vocab": 256, "context": CONTEXT, "tokenizer": "none",
}  # fmt: skip
MIXED = {"attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "": Q.Q4_K}
NORMS = GpuProfile().with_rules("deferred_norms")
ALL = GpuProfile().with_rules(
    "deferred_norms",
    "swiglu_fusion",
    "horizontal_fusion",
    "last_block_reduction",
    "rope_fused_attention",
    "dependent_launches",
    "weight_pipelines",
)


GATES_AND_SENDS = "gated_hw_dp4a_q4k_gemv_sent"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", "llama", MIXED, **SIZES)


def decoded(path: Path, profile: GpuProfile, ranks: int, *, sanitize: bool = False) -> tuple[bytes, list[Counter[str]]]:
    """The logits of a sequence and of a step of one row, and how often each launches which kernel."""
    logits, both = logits_and_plans(path, profile, TOKENS, CONTEXT, sanitize=sanitize, ranks=ranks)
    return logits, [Counter(plan.kernel.name for plan in plans) for plans in both]


@pytest.mark.parametrize("profile", [GpuProfile(), NORMS, ALL], ids=["plain", "norms", "all"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_devices_has_the_bits_of_one(path: Path, profile: GpuProfile, ranks: int) -> None:
    alone, _ = decoded(path, profile, 1)
    shared, (token, step) = decoded(path, profile, ranks, sanitize=True)
    assert shared == alone
    for launches in (token, step):
        gathers, sends = launches["gather_digits"], launches["send_digits"] + launches[GATES_AND_SENDS]
        assert (gathers >= 4, sends >= 4) == ((False, True) if profile is ALL and ranks == 2 else (True, False))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
@pytest.mark.parametrize("types", [MIXED, {"": Q.Q8_0}], ids=["mixed", "q8_0"])
def test_so_has_every_architecture(architecture: str, types: dict[str, Any], tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", architecture, types, **{**SIZES, "layers": 1})
    for profile in (NORMS, ALL):
        shared, (token, _) = decoded(path, profile, 2)
        assert shared == decoded(path, profile, 1)[0]
        sent = token["send_digits"] + sum(count for name, count in token.items() if name.endswith("_sent"))
        expected = (3, 1) if profile is ALL else (0, 4)  # the head has too many blocks to receive
        assert (sent, token["gather_digits"]) == expected


def test_fast_with_outliers_has_them_too(path: Path) -> None:
    """Outliers are looked for in values, which are gathered then."""
    profile = GpuProfile("fast").with_rules("deferred_norms", "swiglu_fusion")
    found = []
    for ranks in (1, 2):
        with CudaExecutor(devices=["emulator"] * ranks, profile=profile) as executor:
            decoder = executor.load_model(path, context=CONTEXT).decoder
            flagged = decoder.outliers()
            decoder.feed(TOKENS)
            decoder.step(5)
            found.append((flagged, decoder.logits().tobytes()))
            kernels = {plan.kernel.name for plan in decoder.prepare().whole}
    assert found[0] == found[1]
    assert found[0][0]
    assert "gather_digits" in kernels


def test_nothing_makes_planes_or_norms_of_what_was_gathered(path: Path) -> None:
    _, (token, step) = decoded(path, ALL, 2)
    assert not [name for name in (*token, *step) if name.endswith("_quantize")]
    assert token["rmsnorm_digits"] == 1  # of the embedding
    assert (token["send_digits"], token[GATES_AND_SENDS]) == (5, 2)
    assert (token["gather_digits"], token["all_gather"]) == (1, 1)  # the norm of the head; the logits
    assert step["rmsnorm_digits"] == 2  # behind the last layer nobody knows which rows are scored
    assert (step["send_digits"], step[GATES_AND_SENDS], step["gather_digits"], step["all_gather"]) == (5, 2, 0, 2)


def test_a_part_of_gate_and_up_is_gated_in_their_launch(path: Path) -> None:
    for found in decoded(path, ALL, 2)[1]:
        assert (found[GATES_AND_SENDS], found["fused_swiglu"]) == (2, 0)
    for found in decoded(path, ALL.without("sent_parts"), 2)[1]:
        assert (found["gated_hw_dp4a_q4k_gemv"], found["fused_swiglu"]) == (2, 0)
    for found in decoded(path, NORMS, 2)[1]:
        assert (found[GATES_AND_SENDS], found["fused_swiglu"]) == (0, 2)


def test_without_fused_norms_the_stream_is_gathered(path: Path) -> None:
    _, (token, _) = decoded(path, GpuProfile(), 2)
    assert not [name for name in token if name.endswith("_quantize")]
    assert (token["gather_digits"], token["all_gather"], token["rmsnorm_digits"]) == (4, 5, 5)


def test_a_profile_can_have_values_gathered(path: Path) -> None:
    shared, (token, step) = decoded(path, GpuProfile().with_rules("deferred_norms").without("plane_gathers"), 2)
    assert shared == decoded(path, NORMS, 1)[0]
    for found in (token, step):
        assert not {"send_digits", "gather_digits"} & set(found)


def test_a_profile_can_have_planes_gathered_and_not_sent(path: Path) -> None:
    shared, (token, step) = decoded(path, ALL.without("sent_parts"), 2, sanitize=True)
    assert shared == decoded(path, ALL, 2)[0]
    assert (token["gather_digits"], step["gather_digits"]) == (8, 7)
    assert not token["send_digits"] + step["send_digits"]


@pytest.mark.parametrize(
    ("named", "types", "ff"),
    [
        ({"q4k": "hw_dp4a_q4k_gemv:pdl=True"}, MIXED, 512),
        ({"q3k": "hw_dp4a_q3k_gemv:row_groups=2,digits=3"}, {"ffn_down": Q.Q3_K, "": Q.Q4_K}, 5120),
        ({}, {"ffn_gate": Q.Q8_0, "": Q.Q4_K}, 256),
    ],
    ids=["pdl", "row groups that a part has not", "ffn as wide as heads, not gated"],
)
def test_kernels_that_cannot_receive_find_what_was_gathered(
    named: dict[str, str], types: dict[str, Any], ff: int, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", types, **{**SIZES, "layers": 1, "ff": ff})
    profile = replace(ALL, gemv=named)
    shared, (token, _) = decoded(path, profile, 2, sanitize=True)
    assert shared == decoded(path, profile, 1)[0]
    assert token["gather_digits"] + token["send_digits"] + token[GATES_AND_SENDS] == 4


def test_parts_that_are_no_whole_blocks_of_planes_are_gathered_as_values(tmp_path: Path) -> None:
    sizes = {**SIZES, "layers": 1, "hidden": 96, "heads": 4, "kv_heads": 2, "head_dim": 32, "ff": 96}
    path = write_model(tmp_path / "m.gguf", "qwen3", Q.Q8_0, **sizes)
    shared, (token, _) = decoded(path, ALL, 2)
    assert shared == decoded(path, ALL, 1)[0]
    assert (token["send_digits"], token["all_gather"]) == (1, 4)  # attention's heads alone


def test_the_residual_stream_is_whole_for_who_asks(path: Path) -> None:
    """For vectors of texts; before the next token and behind it, too."""
    streams = []
    for ranks in (1, 2):
        with CudaExecutor(devices=["emulator"] * ranks, profile=ALL) as executor:
            decoder = executor.load_model(path, context=CONTEXT).decoder
            own = []
            for head in (False, False, True):
                decoder.step(17, head=head)
                own += [decoder.hidden(), decoder.hidden()]
            streams.append((np.array(own).tobytes(), decoder.logits().tobytes()))
    assert streams[0] == streams[1]


@pytest.mark.parametrize(("sent", "waits"), [(True, "hw_dp4a_q4k_gemv_residual"), (False, "gather_digits")])
def test_a_rank_that_does_not_answer_ends_the_step_on_all(path: Path, sent: bool, waits: str) -> None:
    with CudaExecutor(devices=["emulator"] * 2, profile=switched(ALL, sent_parts=sent)) as executor:
        decoder, device = executor.load_model(path, context=CONTEXT).decoder, executor.device
        assert isinstance(device, SeveralDevices)
        decoder.step(3)
        sends = next(plan for plan in decoder.graph().plans if plan.kernel.name == ("send_digits" if sent else "gather_digits"))
        numbers = sends.arguments["numbers"]
        device.devices[1].fill(device.peers(numbers.pointer)[1], numbers.nbytes, 0x40)  # it takes all others to be far ahead
        with pytest.raises(DeviceFailed, match=waits):
            decoder.step(17)
