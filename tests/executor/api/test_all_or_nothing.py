"""A call that is refused has changed nothing, wherever in it the fault lies; and what is refused does not depend on the kernel
that the profile chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuBuffer, GpuProfile, ValidatedLayerWeights
from executor.base.errors import LaunchError
from ptxgen.errors import PtxGenError
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

LAYERS, HIDDEN, FF, HEADS, KV_HEADS, HEAD_DIM, ROOM = 2, 256, 512, 4, 2, 64, 8
EPS = 1e-5
Values = NDArray[np.float32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "ff": FF}
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", "llama", {"": Q.Q4_K}, **shape)  # type: ignore[arg-type]


@pytest.fixture
def executor(model: Path) -> Iterator[CudaExecutor]:
    with CudaExecutor("emulator", profile=GpuProfile()) as made:
        made.load_weights(model)
        made.init_kv_cache(LAYERS, HEADS, KV_HEADS, HEAD_DIM, ROOM)
        yield made


def values(seed: int = 1, n: int = HIDDEN) -> Values:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def contents(executor: CudaExecutor) -> list[Values]:
    return [buffer.to_numpy() for layer in executor.sequence.cache.layers for buffer in (layer.keys, layer.values)]


def with_a_fault_in(role: str, executor: CudaExecutor, layer: ValidatedLayerWeights) -> ValidatedLayerWeights:
    """The layer with a weight that cannot be used any more: another took its name."""
    raw = getattr(layer, role)
    buffer = raw if isinstance(raw, GpuBuffer) else raw.weight.buffer
    name = f"blk.0.{role}.weight"
    shape = buffer.shape if isinstance(raw, GpuBuffer) else raw.shape
    executor.load_weight(name, buffer.to_numpy(), "F32" if isinstance(raw, GpuBuffer) else raw.type, shape)
    return layer


@pytest.mark.parametrize("role", ["attn_norm", "attn_v", "attn_output", "ffn_norm", "ffn_down"])
def test_a_layer_with_a_weight_that_was_replaced_changes_nothing(role: str, executor: CudaExecutor) -> None:
    indexed, sizes = executor.build_indexed_weights(LAYERS, HIDDEN, FF), (HIDDEN, FF, EPS)
    hidden = executor.buffer(values())
    for position in range(3):
        executor.transformer_layer_workspace(hidden, 0, indexed[0], *sizes, position)
    stale = with_a_fault_in(role, executor, indexed[0])
    before, cached, lengths = hidden.to_numpy(), contents(executor), list(executor.sequence.lengths)
    for position in (1, 3):  # gone back to, and the next one
        with pytest.raises(LaunchError, match="was freed"):
            executor.transformer_layer_workspace(hidden, 0, stale, *sizes, position)
        np.testing.assert_array_equal(hidden.to_numpy(), before)
        for now, then in zip(contents(executor), cached, strict=True):
            np.testing.assert_array_equal(now, then)
        assert executor.sequence.lengths == lengths


def test_a_wrong_intermediate_dim_changes_nothing(executor: CudaExecutor) -> None:
    indexed, hidden = executor.build_indexed_weights(LAYERS, HIDDEN, FF), executor.buffer(values())
    before = contents(executor)
    with pytest.raises(PtxGenError):
        executor.transformer_layer_workspace(hidden, 0, indexed[0], HIDDEN, 2 * FF, EPS, 0)
    np.testing.assert_array_equal(hidden.to_numpy(), values())
    for now, then in zip(contents(executor), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert executor.sequence.lengths == [0, 0]


def test_planes_that_a_refused_call_would_have_made_are_made_by_the_next(executor: CudaExecutor) -> None:
    gate, up, down = (f"blk.0.ffn_{role}.weight" for role in ("gate", "up", "down"))
    x = executor.buffer(values())
    expected = executor.fused_ffn_swiglu_gpu(x, gate, up, down, HIDDEN, FF).to_numpy()
    x.upload(values(2))
    stale = executor.weights[down]
    executor.load_weight(down, stale.buffer.to_numpy(), "Q4_K", (HIDDEN, FF))
    scratch = executor.workspace.buffer("ffn gate", (FF,)).to_numpy()
    with pytest.raises(LaunchError, match="was freed"):
        executor.fused_ffn_swiglu_gpu(x, gate, up, stale, HIDDEN, FF)
    np.testing.assert_array_equal(executor.workspace.buffer("ffn gate", (FF,)).to_numpy(), scratch)
    got = executor.fused_ffn_swiglu_gpu(x, gate, up, down, HIDDEN, FF).to_numpy()
    assert not np.array_equal(got, expected)
    with CudaExecutor("emulator", profile=GpuProfile()) as fresh:
        for name in (gate, up, down):
            weight = executor.weights[name]
            fresh.load_weight(name, weight.buffer.to_numpy(), "Q4_K", (weight.n, weight.k))
        np.testing.assert_array_equal(got, fresh.fused_ffn_swiglu_gpu(values(2), gate, up, down, HIDDEN, FF).to_numpy())


def test_a_layer_that_fails_on_the_device_forgets_the_positions_that_it_may_have_overwritten(executor: CudaExecutor) -> None:
    indexed, sizes = executor.build_indexed_weights(LAYERS, HIDDEN, FF), (HIDDEN, FF, EPS)
    hidden = executor.buffer(values())
    for position in range(3):
        executor.transformer_layer_workspace(hidden, 0, indexed[0], *sizes, position)

    def fail(record: object) -> None:
        raise RuntimeError("observer")

    executor.launcher.observers.append(fail)
    with pytest.raises(RuntimeError, match="observer"):
        executor.transformer_layer_workspace(hidden, 0, indexed[0], *sizes, 1)
    assert executor.sequence.lengths == [1, 0]


KERNELS: dict[str, Callable[[CudaExecutor, GpuBuffer], None]] = {
    "profile": lambda e, x: e.gemv_dispatch("Q4_K", "w", x, x, HIDDEN, HIDDEN),
    "basic": lambda e, x: e.q4k_gemv_into_legacy("w", x, x, HIDDEN, HIDDEN),
    "mwv": lambda e, x: e.mwv_q4k_gemv_into("w", x, x, HIDDEN, HIDDEN),
    "hw_dp4a": lambda e, x: e.hw_dp4a_q4k_gemv_into("w", x, x, HIDDEN, HIDDEN),
    "in part": lambda e, x: e.hw_dp4a_q4k_gemv_into("w", x, x.view(4 * 3, (HIDDEN - 3,)), HIDDEN - 3, HIDDEN),
}


@pytest.mark.parametrize("precision", ["accurate", "fast"])
@pytest.mark.parametrize("which", KERNELS)
def test_an_output_over_its_input_is_refused_whatever_the_kernel(which: str, precision: str, executor: CudaExecutor) -> None:
    executor.profile = GpuProfile(precision)
    whole = executor.weights["blk.0.attn_q.weight"]
    n = HIDDEN - 3 if which == "in part" else HIDDEN
    executor.load_weight("w", whole.buffer.to_numpy()[:n], "Q4_K", (n, HIDDEN))
    x = executor.buffer(values())
    with pytest.raises(LaunchError, match=r"output \(.*\) overlaps input \(.*\) in memory; output is written"):
        KERNELS[which](executor, x)
    np.testing.assert_array_equal(x.to_numpy(), values())


def test_a_profile_that_names_an_f32_kernel_says_the_same(executor: CudaExecutor) -> None:
    executor.profile = GpuProfile(gemv={"q4k": "mwv_q4k_gemv"})
    x = executor.buffer(values())
    with pytest.raises(LaunchError, match=r"output .* overlaps input"):
        executor.q4k_gemv_into("blk.0.attn_q.weight", x, x, HIDDEN, HIDDEN)
