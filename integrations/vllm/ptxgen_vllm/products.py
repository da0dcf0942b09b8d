"""The two products of the plugin's module `ops` on our kernels, with its names, parameters and results: both multiply rows of
activations by a matrix of GGUF blocks, and the number of rows chooses the kernel, not the name."""

from __future__ import annotations

from typing import Final

import torch

from executor.base.errors import LaunchError
from executor.torch import gguf_linear
from ptxgen.errors import ArgumentError
from ptxgen_vllm.quant_types import format_of

ACTIVATIONS: Final = (torch.float16, torch.bfloat16, torch.float32)
"""What the plugin says that it takes."""


def ggml_mul_mat_vec_a8(W: torch.Tensor, X: torch.Tensor, quant_type: int, row: int) -> torch.Tensor:
    """X W^T, of X's dtype, [rows, row]: X is float16, bfloat16 or float32[rows, k]; W uint8[row, bytes of k values], blocks of
    the GGML type `quant_type`. The plugin asks for it with few rows.

    Sums are made of X as float32, by what PTXGEN_PRECISION chooses, and rounded once, to X's dtype. Raises ArgumentError for
    other types, dtypes, shapes, and for tensors of two devices or of none that has kernels; LaunchError in a capture."""
    return _product(W, X, quant_type, row)


def ggml_mul_mat_a8(W: torch.Tensor, X: torch.Tensor, quant_type: int, row: int) -> torch.Tensor:
    """As ggml_mul_mat_vec_a8. The plugin asks for it with many rows."""
    return _product(W, X, quant_type, row)


def _product(weight: torch.Tensor, x: torch.Tensor, quant_type: int, row: int) -> torch.Tensor:
    name = format_of(quant_type)
    if x.dtype not in ACTIVATIONS:
        raise ArgumentError(f"X is {x.dtype}; allowed: {', '.join(map(str, ACTIVATIONS))}")
    if x.dim() != 2:
        raise ArgumentError(f"X has the shape {list(x.shape)}; must be [rows, k]")
    if weight.dim() == 2 and int(row) != weight.shape[0]:
        raise ArgumentError(f"row is {int(row)}, but W has {weight.shape[0]} rows; must be all of them")
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise LaunchError(
            "vLLM captures a CUDA graph, and ptxgen's kernels cannot be in a graph of PyTorch: start it with --enforce-eager "
            "(enforce_eager=True), or with -O.cudagraph_mode=NONE"
        )
    made: torch.Tensor = gguf_linear(x.float(), weight, name)
    return made.to(x.dtype)
