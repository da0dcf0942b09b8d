"""A profile whose token rotates its heads and keeps its keys and values in the launch that attends: a launch less a layer, with
the same bits, eager, as graphs, early and after a step back; and the launches of before where no kernel suits the heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.choice import attention as choice
from executor.choice.attention import choose_token_attention
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import Device, Node
from executor.measure.profiler import TileProfiler
from executor.model.generation import LanguageModel
from ptxgen.target import Target
from tests.switched import switched
from tests.synthetic import Q, write_model

CONTEXT, SHORT, LENGTH = 96, 32, 36
TOKENS = [3 + 7 * at % 200 for at in range(LENGTH)]
APART = GpuProfile().with_rules("last_block_reduction")
ROTATING = APART.with_rules("rope_fused_attention")


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a context that the emulator is done with soon has several."""
    monkeypatch.setattr(choice, "TOKEN_SHORT", SHORT)
    monkeypatch.setattr(choice, "TOKEN_LEAST", 32)


def made(folder: Path, arch: str, **shape: Any) -> Path:
    sizes = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "ff": 256, "context": CONTEXT, **shape}
    return write_model(folder / "m.gguf", arch, Q.Q4_K, **sizes)


def decoded(path: Path, profile: GpuProfile, device: Device, *, tokens: int = LENGTH) -> tuple[bytes, list[str]]:
    """The logits about the edge of a part, of a step back, eager and profiled, and the kernels between products and output."""
    found = []
    with LanguageModel.load(path, device, context=CONTEXT, profile=profile) as model:
        decoder = model.decoder
        for at, token in enumerate(TOKENS[:tokens]):
            decoder.step(token, head=at >= tokens - 6)
            if at >= tokens - 6:
                found.append(decoder.logits())
        decoder.rewind(TOKENS[: tokens - 1])
        decoder.launcher.observers.append(lambda record: None)  # eager
        decoder.step(TOKENS[tokens - 1])
        found.append(decoder.logits())
        decoder.launcher.observers.clear()
        decoder.profiler = TileProfiler(device)
        decoder.step(5)
        found.append(decoder.logits())
        calls = [call for call in decoder.prepare().launches.calls if call.place.layer == 0]
        names = [call.kernel.name for call in calls if call.place.operation in ("rope_scatter", "attn_q_norm", "attention")]
        decoder.profiler = None
    return np.array(found).tobytes(), names


STYLES = [
    ("llama", {}, "rope_"),
    ("qwen2", {}, "bias_rope_neox_"),
    ("qwen3", {"head_dim": 64}, "norm_rope_neox_"),
    ("llama", {"heads": 8, "kv_heads": 1, "head_dim": 32}, "rope_"),
]


@pytest.mark.parametrize(("arch", "shape", "style"), STYLES, ids=str)
@pytest.mark.parametrize("dependent", [False, True])
def test_a_token_has_the_bits_of_two_launches(
    arch: str, shape: dict[str, int], style: str, dependent: bool, tmp_path: Path, device: Device
) -> None:
    path = made(tmp_path, arch, **shape)
    apart, before = decoded(path, switched(APART, dependent_launches=dependent), device)
    together, names = decoded(path, switched(ROTATING, dependent_launches=dependent), device)
    assert together == apart
    assert [name.split("grouped")[0] for name in names] == [style]
    assert before == [f"{style}scatter_indirect", names[0].removeprefix(style)]


@pytest.mark.parametrize("dependent", [False, True])
def test_the_sanitiser_finds_nothing_in_a_model_that_rotates_as_it_attends(
    dependent: bool, tmp_path: Path, device: Device
) -> None:  # fmt: skip
    path = made(tmp_path, "llama", layers=1)
    apart, _ = decoded(path, APART, device, tokens=34)
    with open_device("emulator", sanitize=True) as sanitising:
        assert decoded(path, switched(ROTATING, dependent_launches=dependent), sanitising, tokens=34)[0] == apart


@pytest.mark.parametrize(("arch", "shape"), [("llama", {}), ("qwen3", {"head_dim": 64})], ids=str)
def test_a_gpu_without_dependent_launches_has_the_same_bits(
    arch: str, shape: dict[str, int], tmp_path: Path, device: Device
) -> None:  # fmt: skip
    path = made(tmp_path, arch, layers=1, **shape)
    apart, _ = decoded(path, APART, device, tokens=34)
    with EmulatedDevice(target=Target(75), sanitize=True) as older:
        together, names = decoded(path, ROTATING, older, tokens=34)
    assert together == apart
    assert "rope_" in names[0]


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "shape", "style"), STYLES, ids=str)
def test_it_is_dependent_in_a_graph_whose_last_launch_writes_the_position(
    arch: str, shape: dict[str, int], style: str, tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads before it waits no launch before it in the graph writes; with joined products it waits for one alone, as it
    must to start while that runs."""
    graphs: list[Sequence[Node]] = []

    def make_graph(nodes: Sequence[Node]) -> Any:
        graphs.append(nodes)
        return plain(nodes)

    plain = device.make_graph
    monkeypatch.setattr(device, "make_graph", make_graph)
    path = made(tmp_path, arch, **shape)
    for dependent in (False, True):
        profile = switched(ROTATING.with_rules("horizontal_fusion"), dependent_launches=dependent)
        with LanguageModel.load(path, device, context=CONTEXT, profile=profile) as model:
            model.decoder.step(TOKENS[0])
            model.decoder.step()
        assert "advance_position" in {node.kernel.entry for node in graphs[-1]}
        found = [node for node in graphs[-1] if node.kernel.entry.startswith(f"{style}grouped_attention")]
        assert [(node.dependent, len(node.after)) for node in found] == [(dependent, 1)] * 2


def test_heads_that_no_kernel_suits_are_rotated_by_themselves(tmp_path: Path, device: Device) -> None:
    path = made(tmp_path, "qwen3", head_dim=32, layers=1)  # whose pairs no lane has both of
    apart, before = decoded(path, APART, device, tokens=8)
    assert decoded(path, ROTATING, device, tokens=8) == (apart, before)
    assert before[0] == "per_head_rmsnorm"


def test_a_token_attends_by_as_many_parts_on_every_gpu_and_rotates_where_the_profile_says() -> None:
    chosen = [
        choose_token_attention(profile, heads=32, kv_heads=8, head_dim=128, value_dim=value_dim)
        for profile, value_dim in ((APART, None), (ROTATING, None), (ROTATING, 64))
    ]
    apart = "grouped_attention, splits=16 beyond 32 positions"
    assert [str(one) for one in chosen] == [
        f"{apart} (the profile's rope_fused_attention is off)",
        f"{apart}, with rotation and store (the profile's rope_fused_attention is on)",
        f"{apart} (heads of keys have 128 values, and those of values 64)",
    ]
    assert [one.facts()["rope_fused"] for one in chosen] == [False, True, False]
