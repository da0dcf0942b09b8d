"""executor, of the distribution ptxgen, runs PTX: devices, kernels loaded once, the transformer layer, and GGUF models that
decode."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.api.executor import CudaExecutor
    from executor.choice.choice import GpuProfile
    from executor.layers.indexed import ValidatedLayerWeights
    from executor.memory.buffers import GpuBuffer
    from executor.memory.kv_cache import KvCache
    from executor.memory.workspace import Workspace
    from executor.model.scheduling.scheduler import Scheduler

__all__ = ["CudaExecutor", "GpuBuffer", "GpuProfile", "KvCache", "Scheduler", "ValidatedLayerWeights", "Workspace"]

_HOMES = {
    "CudaExecutor": "executor.api.executor",
    "GpuBuffer": "executor.memory.buffers",
    "GpuProfile": "executor.choice.choice",
    "KvCache": "executor.memory.kv_cache",
    "Scheduler": "executor.model.scheduling.scheduler",
    "ValidatedLayerWeights": "executor.layers.indexed",
    "Workspace": "executor.memory.workspace",
}


def __getattr__(name: str) -> Any:
    """`from executor import CudaExecutor`, imported when it is asked for: the commands must start quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
