"""The operator ptxgen::gguf_linear: activations times a matrix of GGUF blocks. Under torch.compile it stays one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch

from executor.memory.interop import unheld_buffer
from executor.memory.weights import LoadedWeight
from executor.model.prompt_chunks import chunks
from executor.torch.executors import executor_of
from ptxgen.errors import ArgumentError
from ptxgen.formats import find
from ptxgen.formats.format import Format
from ptxgen.types import F32, U8

MOST_ROWS = 512
"""Rows of one product: as many as a step of a model has. More go one after another, in powers of two, so that few kernels do
for whatever numbers of rows come."""
ALIGNED = 16
"""Bytes on whose multiples kernels want arrays to start."""
TAGS = (torch.Tag.cudagraph_unsafe,)
"""torch.compile leaves the operator out of its CUDA graphs: of their replays the executor would not know."""


@dataclass(frozen=True)
class BlockTensor:
    """What a tensor of blocks is: n rows of k values."""

    format: Format
    n: int
    k: int

    @classmethod
    def of(cls, weight: torch.Tensor, format: str) -> Self:
        """ArgumentError unless the tensor can be a matrix of this format."""
        kind = find(format)
        if weight.dtype != torch.uint8 or weight.dim() != 2 or not weight.is_contiguous():
            found = f"{weight.dtype}{list(weight.shape)}{'' if weight.is_contiguous() else ', not row-major'}"
            raise ArgumentError(f"weight is {found}; must be row-major torch.uint8[n, bytes of a row of {kind}]")
        n, row_bytes = weight.shape
        if not n or not row_bytes or row_bytes % kind.block_bytes:
            raise ArgumentError(
                f"weight has {n} rows of {row_bytes} bytes; a row of {kind} has a multiple of {kind.block_bytes}"
            )
        return cls(kind, n, row_bytes // kind.block_bytes * kind.block)

    def require(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        """ArgumentError unless it can multiply x."""
        if x.dtype != torch.float32:
            raise ArgumentError(f"x is {x.dtype}; must be torch.float32, which x.float() makes of it")
        if x.dim() == 0 or x.shape[-1] != self.k:
            raise ArgumentError(
                f"x has the shape {list(x.shape)}; weight is {self.n} x {self.k}, so it must be [{self.k}] or [..., {self.k}]"
            )
        if x.device != weight.device:
            raise ArgumentError(f"x is on {x.device}, weight on {weight.device}; must be on one device")


@torch.library.custom_op("ptxgen::gguf_linear", mutates_args=(), tags=TAGS)  # type: ignore[untyped-decorator]
def gguf_linear(x: torch.Tensor, weight: torch.Tensor, format: str) -> torch.Tensor:
    """x W^T: float32[..., n] of x, float32[..., k] or float32[k], and W, n rows of k values.

    weight: uint8[n, bytes of a row], row-major: the blocks of a GGML type as they lie in a GGUF file; format: its name, "Q4_K".
    Both are on one device: on a GPU the kernels read and write PyTorch's memory, on its current stream; for tensors of the CPU
    the emulator runs the same kernels, slowly. By what the environment's precision and the GPU's tuning choose: the bits of
    `CudaExecutor.matmul`.

    Raises ArgumentError for other types (x.float() converts), shapes and formats, and in `backward`: there is no gradient.
    LaunchError inside a capture of PyTorch's; torch.compile(mode="reduce-overhead") leaves the operator out of its graphs."""
    matrix = BlockTensor.of(weight, format)
    matrix.require(x, weight)
    rows = x.detach().reshape(-1, matrix.k).contiguous()
    if rows.data_ptr() % ALIGNED:
        rows = rows.clone()
    made = rows.new_empty((len(rows), matrix.n))
    if len(rows):
        _multiply(matrix, weight, rows, made)
    return made.reshape(*x.shape[:-1], matrix.n)


def _multiply(matrix: BlockTensor, weight: torch.Tensor, rows: torch.Tensor, made: torch.Tensor) -> None:
    """On the current stream, in whose order PyTorch reuses memory, so that it need not be held meanwhile."""
    with executor_of(rows.device) as executor:
        device = executor.device
        blocks = unheld_buffer(device, weight.data_ptr(), U8, tuple(weight.shape), "weight")
        loaded = LoadedWeight("weight", blocks, matrix.format, matrix.n, matrix.k)
        x = unheld_buffer(device, rows.data_ptr(), F32, tuple(rows.shape), "x")
        y = unheld_buffer(device, made.data_ptr(), F32, tuple(made.shape), "y")
        for some in chunks(range(len(rows)), MOST_ROWS):
            first, count = some[0], len(some)
            out = y.view(first * matrix.n * F32.bytes, (count, matrix.n))
            executor.matmul(loaded, x.view(first * matrix.k * F32.bytes, (count, matrix.k)), out=out)


@gguf_linear.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor, weight: torch.Tensor, format: str) -> torch.Tensor:
    matrix = BlockTensor.of(weight, format)
    matrix.require(x, weight)
    return x.new_empty((*x.shape[:-1], matrix.n))


def _no_gradient(context: Any, gradient: torch.Tensor) -> None:
    raise ArgumentError(
        "ptxgen::gguf_linear has no gradient: its weights are quantised; call it under torch.no_grad(), or with x.detach()"
    )


gguf_linear.register_autograd(_no_gradient)
