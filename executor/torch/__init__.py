"""GGUF weights in PyTorch's models: a linear layer as an operator and as a module. Needs the extra `torch`; what is launched is
CudaExecutor's business."""

from __future__ import annotations

from executor.base.errors import MissingExtra
from ptxgen.extras import install

try:
    import torch  # PyTorch: this package is executor.torch, and imports here are absolute
except ImportError as error:
    raise MissingExtra(f"executor.torch needs PyTorch ({error}): {install('torch')}") from error

from executor.torch.linear import gguf_linear
from executor.torch.module import GgufLinear

__all__ = ["GgufLinear", "gguf_linear"]

del install, torch
