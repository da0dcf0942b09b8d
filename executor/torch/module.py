"""A linear layer of a GGUF file as a module of PyTorch."""

from __future__ import annotations

from math import prod
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from executor.base.arguments import described
from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.memory.weights import TensorFile, tensor_info
from executor.torch.linear import BlockTensor, gguf_linear
from ptxgen.errors import ArgumentError


class GgufLinear(torch.nn.Module):  # type: ignore[misc]
    """y = x W^T + bias, float32[..., n] of float32[..., k], with W in the blocks of a GGML type, as they lie in a GGUF file:
    the operator ptxgen::gguf_linear, whose devices and errors it has.

    weight: uint8[n, bytes of a row]; format: the type's name, "Q4_K"; bias: float32[n]. Both are buffers, not parameters: they
    move with the module and stand in its state_dict, with the format, which must be the same where that is loaded. Casting the
    module leaves the blocks alone. There is nothing to train."""

    def __init__(self, weight: torch.Tensor, format: str, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        matrix = BlockTensor.of(weight, format)
        if bias is not None and (bias.dtype != torch.float32 or tuple(bias.shape) != (matrix.n,)):
            raise ArgumentError(f"bias is {bias.dtype}{list(bias.shape)}; must be torch.float32[{matrix.n}]")
        self.format = matrix.format.name
        self.in_features, self.out_features = matrix.k, matrix.n
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    @classmethod
    def from_gguf(
        cls, file: str | PathLike[str] | TensorFile, name: str, *, bias: str | None = None, device: Any = None
    ) -> Self:
        """The layer of a tensor of a GGUF file, with another one that is its bias, on this device (default: PyTorch's). Raises
        ModelError for a file that cannot be read, a tensor that is not there or of a type that no kernel reads, and for one
        that is no matrix."""
        if not isinstance(file, TensorFile):
            with GgufFile.open(file) as opened:
                return cls.from_gguf(opened, name, bias=bias, device=device)
        device = torch.get_default_device() if device is None else device
        info = tensor_info(file, name)
        if len(info.shape) != 2:
            raise ModelError(f"tensor {name} has the shape {list(info.shape)}; a linear layer takes a matrix")
        added = None if bias is None else torch.from_numpy(_vector(file, bias)).to(device)
        blocks = torch.from_numpy(file.data(name).reshape(info.shape[0], -1))
        return cls(blocks.to(device), info.ggml_type.name, added)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + bias; errors as gguf_linear."""
        made = gguf_linear(x, self.weight, self.format)
        return made if self.bias is None else made + self.bias

    def extra_repr(self) -> str:
        """What is printed of it."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, format={self.format}, bias={self.bias is not None}"

    def get_extra_state(self) -> dict[str, str]:
        """The format, for state_dict: the bytes do not tell it."""
        return {"format": self.format}

    def set_extra_state(self, state: dict[str, str]) -> None:
        """ArgumentError for a state of another format."""
        if state.get("format") != self.format:
            raise ArgumentError(f"the state is of {described(state.get('format'))}, this layer of {self.format}")


def _vector(file: TensorFile, name: str) -> NDArray[np.float32]:
    info = tensor_info(file, name)
    if info.ggml_type.name != "F32" or prod(info.shape) != info.shape[-1]:
        raise ModelError(f"tensor {name} is {info.ggml_type.name}{list(info.shape)}; a bias is a vector of F32")
    return file.data(name).view("<f4")
