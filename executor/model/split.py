"""A model whose matrices several devices share by rows: who has which rows of which tensor, and which models they can share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.device.several import MOST_RANKS
from executor.gguf.directory import TensorInfo
from executor.layers.indexed import INPUTS
from executor.memory.weights import TensorFile
from executor.model.fused_tensors import SeparateTensors
from executor.model.spec import ModelSpec
from ptxgen.errors import ArgumentError

EMBEDDING: Final = "token_embd.weight"
HEAD: Final = "output.weight"


class SplitTensors:
    """The tensors of a file as one of `ranks` devices has them: of each matrix that multiplies, and of its bias, equally many
    rows, which lie one after another in the file; of all others the whole. The head of a model
    whose embeddings are its head has its rows beside them: every rank looks tokens up by itself. See TensorFile; what is read
    is read of the whole tensor."""

    def __init__(self, file: TensorFile, ranks: int) -> None:
        self._file = file
        named = dict(file.tensors)
        if HEAD not in named and EMBEDDING in named:
            named[HEAD] = replace(named[EMBEDDING], name=HEAD)
        self.tensors: Mapping[str, TensorInfo] = {
            name: _part(info, ranks) if is_split(name) else info for name, info in named.items()
        }

    def data(self, name: str) -> NDArray[np.uint8]:
        """The packed bytes of a whole tensor."""
        return self._file.data(self._source(name))

    def read_into(self, name: str, start: int, into: NDArray[np.uint8]) -> None:
        """Fill an array with the packed bytes of a whole tensor from `start` on."""
        self._file.read_into(self._source(name), start, into)

    def _source(self, name: str) -> str:
        return name if name in self._file.tensors else EMBEDDING


def loaded(file: TensorFile, spec: ModelSpec, ranks: int) -> tuple[TensorFile, ModelSpec]:
    """The tensors and the model as each of `ranks` devices has them. ArgumentError if so many cannot share it, ModelError for a
    tensor that has other rows than its matrices."""
    separate = SeparateTensors(file, spec)
    return (separate, spec) if ranks == 1 else (SplitTensors(separate, ranks), split_spec(spec, ranks))


def is_split(name: str) -> bool:
    """Whether the ranks share the rows of a tensor. Each has a whole classifier (cls.output), which the host reads."""
    return not name.startswith("cls.") and name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1] in INPUTS


def split_spec(spec: ModelSpec, ranks: int) -> ModelSpec:
    """The model as so many devices share it. ArgumentError if its sizes do not divide: which do not, and what would."""
    spec.require_equal_layers(f"{ranks} devices cannot share the model")
    layer = spec.layer
    if spec.layer.form.norms_twice or layer.form.qk_norm in ("row", "rows"):
        raise ArgumentError(
            f"{ranks} devices cannot share a model of {spec.architecture}: it normalises whole rows of which each would have a "
            "part; allowed: 1"
        )
    if layer.form.scores.alibi:
        raise ArgumentError(
            f"{ranks} devices cannot share a model of {spec.architecture}: it has ALiBi, whose slopes depend on which of the "
            "heads a device has; allowed: 1"
        )
    sizes = {
        "key-value heads": layer.kv_heads,
        "embedding width": spec.hidden,
        "feed-forward width": layer.ff,
        "vocabulary": spec.vocab,
    }
    bad = [f"{what} of {size}" for what, size in sizes.items() if size % ranks]
    if bad:
        allowed = [str(count) for count in range(1, MOST_RANKS + 1) if not any(size % count for size in sizes.values())]
        raise ArgumentError(
            f"{ranks} devices cannot share this model equally: they do not divide its {', '.join(bad)}; "
            f"allowed: {' or '.join(allowed)}"
        )
    return replace(spec, tied=False, ranks=ranks)


def _part(info: TensorInfo, ranks: int) -> TensorInfo:
    first, *others = info.shape
    return replace(info, shape=(first // ranks, *others), nbytes=info.nbytes // ranks, ranks=ranks)
