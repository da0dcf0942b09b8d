"""A text as one vector: the hidden states behind a model's last norm, pooled. In float64, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.memory.weights import LoadedWeight
from executor.model.spec import ModelSpec, NormSpec

Pooling = Literal["mean", "cls", "last"]
POOLINGS: Final[tuple[Pooling, ...]] = ("mean", "cls", "last")
_OF_FILES: Final[dict[int, Pooling]] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
"""By the number that a file has (llama.cpp's llama_pooling_type); 0 says that there is none of its own."""
RANK: Final = 4
"""The number of models that rank texts (ranking.py)."""


def pooling_of(spec: ModelSpec, path: Path) -> Pooling:
    """What a model's file says of it, `mean` if it says nothing. ModelError for another, and for models that rank texts."""
    key = f"{spec.architecture}.pooling_type"
    if spec.pooling_type == RANK:
        raise ModelError(f"{key} is {RANK}: the model ranks texts (`rank`) and makes no vectors of them", path)
    if spec.pooling_type not in _OF_FILES:
        raise ModelError(f"{key} is {spec.pooling_type}; allowed: 0 (none), 1 (mean), 2 (cls), 3 (last), 4 (rank)", path)
    return _OF_FILES[spec.pooling_type]


def last_norm(weights: Mapping[str, LoadedWeight]) -> Mapping[str, NDArray[np.float32]]:
    """The `weight` and the `bias` of a model's last norm, f32[hidden], where there are any."""
    names = {kind: f"output_norm.{kind}" for kind in ("weight", "bias")}
    return {kind: weights[name].buffer.to_numpy() for kind, name in names.items() if name in weights}


def embedding(
    states: Sequence[NDArray[np.float32]],
    norm: NormSpec,
    vectors: Mapping[str, NDArray[np.float32]],
    pooling: Pooling,
    *,
    unit: bool,
) -> NDArray[np.float32]:
    """f32[hidden]. unit: of length 1. See `pooled` for the others."""
    vector = pooled(states, norm, vectors, pooling)
    if unit:
        vector = vector / max(float(np.linalg.norm(vector)), np.finfo(np.float64).tiny)
    return vector.astype(np.float32)


def pooled(
    states: Sequence[NDArray[np.float32]], norm: NormSpec, vectors: Mapping[str, NDArray[np.float32]], pooling: Pooling
) -> NDArray[np.float64]:
    """f64[hidden]. states: f32[hidden], the residual stream of each token; norm: the last one of the model, of which `vectors`
    are those of `last_norm`. pooling: the mean, that of the first token, or of the last."""
    kept = {"mean": slice(None), "cls": slice(1), "last": slice(-1, None)}[pooling]
    x = np.asarray(states[kept], np.float64)
    x = x - np.mean(x, axis=1, keepdims=True) if norm.kind == "layer" else x
    normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + norm.eps) * vectors.get("weight", 1.0) + vectors.get(
        "bias", 0.0
    )
    vector: NDArray[np.float64] = normed.mean(axis=0)
    return vector
