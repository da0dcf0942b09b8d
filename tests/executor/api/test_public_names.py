"""The names that each system of the executor keeps, and that they lead somewhere. What they do is tested beside this file."""

from __future__ import annotations

import inspect
import typing

import pytest

import executor
from executor import CudaExecutor, GpuBuffer, GpuProfile, KvCache, ValidatedLayerWeights, Workspace
from executor.layers.outliers import is_massive_activation_outlier
from ptxgen.kernels.accuracy import OUTLIER

NAMES = {
    "B1 device": ("device", "buffer", "empty", "zeros", "on_stream", "using", "stream", "synchronize", "close"),
    "B2 modules": ("modules",),
    "B3 weights": ("load_weight", "load_weights", "get_quantized_weight_ptr", "weights"),
    "B4 indexed weights": ("build_indexed_weights",),
    "B5 profile": ("profile",),
    "B6 GEMV": (
        "matmul",
        "gemv_dispatch",
        "q4k_gemv_into",
        "q4k_gemv_into_legacy",
        *(f"{strategy}_q4k_gemv_into" for strategy in ("coalesced", "wide", "vectorized", "mwv", "mwv_dp4a", "hw_dp4a")),
        "q6k_gemv_into",
        "dp4a_q6k_gemv_into",
        "hw_dp4a_q6k_gemv_into",
        "q4k_gemv_cached_async",
        "q4k_gemv_indexed_async",
        "q6k_gemv_indexed_async",
    ),
    "B7 batched GEMV": ("batched_q4k_gemv_cached",),
    "B8 FFN": ("fused_ffn_q4k",),
    "B9 SwiGLU FFN": (
        "fused_ffn_swiglu_gpu",
        "fused_ffn_swiglu_indexed_gpu",
        "fused_ffn_swiglu_gpu_true_dp4a",
        "fused_ffn_swiglu_host",
    ),
    "B11 outliers": ("detect_input_outlier",),
    "B12 layer": (
        "transformer_layer_gpu",
        "transformer_layer_indexed",
        "transformer_layer_workspace",
        "transformer_layer_workspace_for_capture",
        "transformer_layer_gpu_tiled_profiled",
    ),
    "B12 steps of a layer": (
        *("rmsnorm", "per_head_rmsnorm", "rope", "attention", "silu", "gelu", "swiglu", "multiply", "residual_add"),
        *("embedding", "argmax"),
    ),
    "B13 workspace": ("workspace",),
    "B14 attention": ("init_kv_cache", "sequence", "incremental_attention_async"),
    "B15 graphs": ("capture", "capture_decode", "replay_decode"),
    "B16 batched decode": (
        "batched_qkv_rope_phase",
        "batched_gemv_with_fallback",
        "batched_gemv_or_gemm",
        "batched_qkv_dp4a_q4k_gemv_into",
        "batched_bias_broadcast_add",
    ),
    "B18 tile profiler": ("enable_tile_profiling", "disable_tile_profiling", "tile_profiler", "tile_summary"),
    "B20 speculative verification": ("verify_draft",),
}


@pytest.fixture(scope="module")
def opened() -> typing.Iterator[CudaExecutor]:
    with CudaExecutor("emulator") as made:
        yield made


@pytest.mark.parametrize("row", NAMES)
def test_every_name_of_a_row_is_there_with_types(row: str, opened: CudaExecutor) -> None:
    for name in NAMES[row]:
        declared = inspect.getattr_static(CudaExecutor, name, None)
        assert declared is not None or hasattr(opened, name), f"{row}: {name}"
        if inspect.isfunction(declared) and "__wrapped__" not in vars(declared):
            untyped = [p for p in list(inspect.signature(declared).parameters)[1:] if p not in declared.__annotations__]
            assert not untyped, f"{row}: {name} does not say the types of {untyped}"


def test_the_package_exports_its_classes() -> None:
    for name in executor.__all__:
        assert getattr(executor, name).__name__ == name
        assert (inspect.isclass if name[0].isupper() else inspect.isfunction)(getattr(executor, name))
    assert {"CudaExecutor", "LanguageModel", "Sampler", "Generation", "load_model", "ArgumentError"} <= set(executor.__all__)
    with pytest.raises(AttributeError, match="CudaExectuor"):
        executor.CudaExectuor  # noqa: B018


def test_what_the_executor_owns_is_of_the_exported_classes(opened: CudaExecutor) -> None:
    assert isinstance(opened.profile, GpuProfile)
    assert isinstance(opened.workspace, Workspace)
    assert isinstance(opened.init_kv_cache(1, 2, 1, 32, 4), KvCache)
    assert isinstance(opened.zeros(3), GpuBuffer)
    assert ValidatedLayerWeights.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert is_massive_activation_outlier([1.0] * 1535 + [OUTLIER])


@pytest.mark.parametrize("name", [name for name, method in vars(CudaExecutor).items() if inspect.isfunction(method)])
def test_a_method_is_called_what_its_callers_call_it(name: str) -> None:
    method = getattr(CudaExecutor, name)
    assert (method.__name__, method.__qualname__, method.__module__) == (
        name,
        f"CudaExecutor.{name}",
        "executor.api.executor",
    )


@pytest.mark.parametrize("arguments", [{}, {"unknown": 1}])
def test_wrong_arguments_of_a_method_are_told_by_its_public_name(opened: CudaExecutor, arguments: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"^CudaExecutor\.q4k_gemv_into\(\)"):
        opened.q4k_gemv_into(**arguments)
