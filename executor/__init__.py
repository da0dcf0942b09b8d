"""executor, of the distribution ptxgen, runs PTX: devices, kernels loaded once, the transformer layer, and GGUF models that
decode."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.api.executor import CudaExecutor
    from executor.api.load import load_model
    from executor.base.errors import DeviceError, DeviceFailed, FetchError, LaunchError, ModelError, OutOfMemory
    from executor.choice.choice import GpuProfile
    from executor.layers.indexed import ValidatedLayerWeights
    from executor.memory.buffers import GpuBuffer
    from executor.memory.kv_cache import KvCache
    from executor.memory.workspace import Workspace
    from executor.model.answer import AnswerStream, Generation
    from executor.model.generation import LanguageModel
    from executor.model.sampling import Sampler
    from executor.model.scheduling.scheduler import Scheduler
    from executor.text.grammar import Grammar
    from ptxgen.errors import ArgumentError, PtxGenError

__all__ = [
    "AnswerStream", "ArgumentError", "CudaExecutor", "DeviceError", "DeviceFailed", "FetchError", "Generation", "GpuBuffer",
    "GpuProfile", "Grammar", "KvCache", "LanguageModel", "LaunchError", "ModelError", "OutOfMemory", "PtxGenError",
    "Sampler", "Scheduler", "ValidatedLayerWeights", "Workspace", "load_model",
]  # fmt: skip

_HOMES = {
    "AnswerStream": "executor.model.answer",
    "ArgumentError": "ptxgen.errors",
    "CudaExecutor": "executor.api.executor",
    "DeviceError": "executor.base.errors",
    "DeviceFailed": "executor.base.errors",
    "FetchError": "executor.base.errors",
    "Generation": "executor.model.answer",
    "GpuBuffer": "executor.memory.buffers",
    "GpuProfile": "executor.choice.choice",
    "Grammar": "executor.text.grammar",
    "KvCache": "executor.memory.kv_cache",
    "LanguageModel": "executor.model.generation",
    "LaunchError": "executor.base.errors",
    "ModelError": "executor.base.errors",
    "OutOfMemory": "executor.base.errors",
    "PtxGenError": "ptxgen.errors",
    "Sampler": "executor.model.sampling",
    "Scheduler": "executor.model.scheduling.scheduler",
    "ValidatedLayerWeights": "executor.layers.indexed",
    "Workspace": "executor.memory.workspace",
    "load_model": "executor.api.load",
}


def __getattr__(name: str) -> Any:
    """`from executor import CudaExecutor`, imported when it is asked for: the commands must start quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
