"""executor runs PTX: devices, kernels loaded once, the transformer layer, and GGUF models that decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.executor import CudaExecutor

__all__ = ["CudaExecutor"]


def __getattr__(name: str) -> Any:
    """`from executor import CudaExecutor`, imported when it is asked for: the commands must start quickly."""
    if name != "CudaExecutor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from executor.executor import CudaExecutor

    return CudaExecutor
