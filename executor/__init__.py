"""executor, of the distribution ptxgen, runs PTX: devices, kernels loaded once, the transformer layer, and GGUF models that
decode."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.buffers import GpuBuffer
    from executor.executor import CudaExecutor
    from executor.indexed import ValidatedLayerWeights
    from executor.kv_cache import KvCache
    from executor.profile import GpuProfile
    from executor.workspace import Workspace

__all__ = ["CudaExecutor", "GpuBuffer", "GpuProfile", "KvCache", "ValidatedLayerWeights", "Workspace"]

_HOMES = {
    "CudaExecutor": "executor.executor",
    "GpuBuffer": "executor.buffers",
    "GpuProfile": "executor.profile",
    "KvCache": "executor.kv_cache",
    "ValidatedLayerWeights": "executor.indexed",
    "Workspace": "executor.workspace",
}


def __getattr__(name: str) -> Any:
    """`from executor import CudaExecutor`, imported when it is asked for: the commands must start quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
