"""Matrices that a file keeps in one tensor, under the names that they have by themselves: Q, K and V in `attn_qkv`, gate and
up in `ffn_up`. Their rows follow one another, so that nothing is copied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.gguf.directory import TensorInfo
from executor.memory.weights import TensorFile
from executor.model.spec import Block, ModelSpec

_BARE: Final = re.compile(r"blk\.\d+\.\w+_norm")
"""Norms of PLaMo 3, whose names do not end in `.weight`."""


@dataclass(frozen=True)
class _Part:
    """Where a matrix lies in a tensor of the file, in bytes."""

    tensor: str
    start: int


class SeparateTensors:
    """The tensors of a file with those of several matrices as these matrices. See TensorFile. ModelError for a tensor that has
    other rows than its matrices."""

    def __init__(self, file: TensorFile, spec: ModelSpec, path: Path | None = None) -> None:
        self._file = file
        self._parts: dict[str, _Part] = {}
        tensors = dict(file.tensors)
        for bare in filter(_BARE.fullmatch, file.tensors):
            whole = tensors.pop(bare)
            tensors[f"{bare}.weight"] = replace(whole, name=f"{bare}.weight")
            self._parts[f"{bare}.weight"] = _Part(bare, 0)
        for layer, block in enumerate(spec.blocks):
            for fused, rows in _fused(block):
                for kind in ("weight", "bias"):
                    self._separate(tensors, f"blk.{layer}.", fused, rows, kind, path)
        self.tensors: Mapping[str, TensorInfo] = tensors

    def data(self, name: str) -> NDArray[np.uint8]:
        """The packed bytes of a tensor."""
        part = self._parts.get(name)
        if part is None:
            return self._file.data(name)
        return self._file.data(part.tensor)[part.start : part.start + self.tensors[name].nbytes]

    def read_into(self, name: str, start: int, into: NDArray[np.uint8]) -> None:
        """Fill an array with the packed bytes of a tensor from `start` on."""
        part = self._parts.get(name, _Part(name, 0))
        self._file.read_into(part.tensor, part.start + start, into)

    def _separate(
        self,
        tensors: dict[str, TensorInfo],
        block: str,
        fused: str,
        rows: Mapping[str, int],
        kind: str,
        path: Path | None,
    ) -> None:
        name = f"{block}{fused}.{kind}"
        whole = tensors.pop(name, None)
        if whole is None:
            return
        total = sum(rows.values())
        if whole.shape[0] != total:
            parts = " + ".join(f"{count} of {role}" for role, count in rows.items())
            raise ModelError(f"tensor {name} has {whole.shape[0]} rows; the metadata needs {parts} = {total}", path)
        start = 0
        for role, count in rows.items():
            nbytes = whole.nbytes // total * count
            own = f"{block}{role}.{kind}"
            tensors[own] = replace(whole, name=own, shape=(count, *whole.shape[1:]), offset=whole.offset + start, nbytes=nbytes)
            self._parts[own] = _Part(name, start)
            start += nbytes


def _fused(block: Block) -> Iterator[tuple[str, Mapping[str, int]]]:
    """The tensors of a layer that hold several matrices: by role, the rows of each, in their order."""
    mixer, ffn = block.mixer, block.ffn
    if mixer.fused:
        yield "attn_qkv", {"attn_q": mixer.q_dim, "attn_k": mixer.k_dim, "attn_v": mixer.v_dim}
    if ffn.fused:
        yield "ffn_up", {"ffn_gate": ffn.ff, "ffn_up": ffn.ff}
