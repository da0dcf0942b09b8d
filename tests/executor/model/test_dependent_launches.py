"""A profile whose launches start before those before them have ended: the same bits, under the sanitiser, which knows what the
launches before may still write. On a GPU: tests/gpu/test_dependent_gpu.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.choice.table import TuningEntry, TuningTable
from executor.device import open_device
from executor.device.gpu import GpuModel
from executor.device.protocol import Device
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Plan
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from tests.switched import switched
from tests.synthetic import Q, write_model

TOKENS = [3, 17, 101, 44, 9]
CONTEXT = 64
GEMMS = ("half_mma_q4k_gemm", {"parts": 2, "split": 1}), ("stationary_q4k_gemm", {"parts": 2})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", "llama", Q.Q4_K, layers=2, hidden=256, heads=4, kv_heads=2, ff=256, context=CONTEXT)


def profile_for(device: Device, *, dependent: bool) -> GpuProfile:
    """With kernels for several rows that load weights before they wait."""
    entries = [
        TuningEntry("accurate", "q4k", 256, n, name, parameters, 1e-6, error=1e-7, rows=4)
        for n, (name, parameters) in zip((128, 256), GEMMS, strict=True)
    ]
    table = TuningTable("a table", GpuModel.of(device), tuple(entries))
    return switched(GpuProfile(tables=(table,)).with_rules("last_block_reduction"), dependent_launches=dependent)


def starts(plans: tuple[Plan, ...]) -> set[str]:
    """The kernels of which a graph starts some launch early."""
    return {plan.kernel.name for plan in plans if plan.node((0,)).dependent}


def decoded(path: Path, device: Device, *, dependent: bool, rounds: int = 1) -> tuple[bytes, list[set[str]]]:
    """The logits of a sequence and of steps of rows, again and again, and which kernels may be dependent in either."""
    profile, logits = profile_for(device, dependent=dependent), []
    with LanguageModel.load(path, device, context=CONTEXT, profile=profile) as model:
        engine = Engine(model.decoder, slots=2, rows=4)
        for slot in (0, 1):
            engine.set_table(slot, range(slot, engine.pages, 2))
        for _ in range(rounds):
            model.decoder.reset()
            for token in TOKENS:
                model.decoder.step(token)
                logits.append(model.decoder.logits())
            engine.step([Row(0, token, at, scored=False) for at, token in enumerate(TOKENS[:3])])
            scores = engine.step([Row(0, TOKENS[3], 3, True), Row(1, 5, 0, True), Row(0, TOKENS[4], 4, True)])
            logits += [scores.logits(index) for index in range(3)]
        graph = engine.steps.replayed
        assert isinstance(graph, LaunchGraph)
        kernels = [starts(model.decoder.prepare().whole), starts(graph.plans)]
        engine.free()
    return np.array(logits).tobytes(), kernels


def test_a_sequence_and_steps_of_rows_have_the_bits_of_launches_that_wait(path: Path) -> None:
    with open_device("emulator", sanitize=True) as device:
        (waiting, none), (found, dependent) = (decoded(path, device, dependent=dependent) for dependent in (False, True))
    assert found == waiting
    assert none == [set(), set()]
    assert dependent == [
        {
            "embedding_lookup_indirect", "rmsnorm_digits", "hw_dp4a_q4k_gemv", "rope_scatter_indirect",
            "incremental_attention_digits_indirect", "hw_dp4a_q4k_gemv_residual", "fused_swiglu_digits", "argmax",
            "advance_position",
        },
        {
            "batched_embedding_lookup", "batched_rmsnorm_halves", "half_mma_q4k_gemm", "stationary_q4k_gemm",
            "paged_rope_scatter", "paged_attention_merged", "pack_halves", "batched_fused_swiglu_halves",
            "batched_rmsnorm_digits", "batched_hw_dp4a_q4k_gemv", "batched_argmax",
        },
    ]  # fmt: skip


def test_kernels_that_can_work_before_they_wait_do(path: Path) -> None:
    with open_device("emulator") as device, LanguageModel.load(
        path, device, context=CONTEXT, profile=profile_for(device, dependent=True)
    ) as model:  # fmt: skip
        engine = Engine(model.decoder, slots=2, page_len=32)
        engine.set_table(0, [0])
        engine.set_table(1, [1])
        engine.step([Row(slot, 7, 0, True) for slot in (0, 1)] * 2)
        graph = engine.steps.replayed
        assert isinstance(graph, LaunchGraph)
        texts = {plan.kernel.name: emit(plan.kernel, Target(90), dependent=True).text for plan in graph.plans}
        products = [plan.kernel for plan in graph.plans if plan.kernel.name == "stationary_q4k_gemm"]
        assert products
        assert all(kernel.launch().dependent for kernel in products)
        engine.free()
    first_load = {name: text[: text.index("griddepcontrol.wait")].count("ld.global") for name, text in texts.items()}
    assert first_load["paged_attention_merged"] == 3  # slot, position, pages
    assert {name for name, count in first_load.items() if count} == {
        "paged_attention_merged",
        "paged_rope_scatter",
        "half_mma_q4k_gemm",
    }


def test_dependent_launches_are_refused_where_no_gpu_has_them() -> None:
    assert GpuProfile().with_rules("dependent_launches").has_dependent_launches(Target(90))
    assert not GpuProfile().has_dependent_launches(Target(75))
    with pytest.raises(ArgumentError, match=r"^the profile's dependent_launches needs sm_90, this is sm_89; leave it off$"):
        GpuProfile().with_rules("dependent_launches").has_dependent_launches(Target(89))


@pytest.mark.parametrize(("sm", "room"), [(80, 166912), (89, 101376), (120, 101376)])
def test_weight_rings_are_refused_where_there_is_no_room(sm: int, room: int) -> None:
    GpuProfile().with_rules("weight_pipelines").require_on(Target(90))
    GpuProfile().with_rules("weight_pipelines").require_on(Target(100))
    message = rf"^the profile's weight_pipelines needs sm_90 and 229376 bytes .* this is sm_{sm} with {room}; leave it off$"
    with pytest.raises(ArgumentError, match=message):
        GpuProfile().with_rules("weight_pipelines").has_dependent_launches(Target(sm))
