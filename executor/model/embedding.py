"""A text as one vector: the hidden states behind a model's last norm, pooled. In float64, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.model.spec import ModelSpec, NormSpec

Pooling = Literal["mean", "last"]
POOLINGS: Final[tuple[Pooling, ...]] = ("mean", "last")
_OF_FILES: Final[dict[int, Pooling]] = {0: "mean", 1: "mean", 3: "last"}
"""By the number that a file has (llama.cpp's llama_pooling_type); 0 says that there is none of its own."""


def pooling_of(spec: ModelSpec, path: Path) -> Pooling:
    """What a model's file says of it, `mean` if it says nothing. ModelError for a way that a decoder has no use for."""
    if spec.pooling_type not in _OF_FILES:
        key = f"{spec.architecture}.pooling_type"
        raise ModelError(f"{key} is {spec.pooling_type}; allowed: 0 (none), 1 (mean), 3 (last)", path)
    return _OF_FILES[spec.pooling_type]


def embedding(
    states: Sequence[NDArray[np.float32]],
    norm: NormSpec,
    vectors: Mapping[str, NDArray[np.float32]],
    pooling: Pooling,
    *,
    unit: bool,
) -> NDArray[np.float32]:
    """f32[hidden]. states: f32[hidden], the residual stream of each token; norm: the last one of the model, of which `vectors`
    has `weight` and `bias`, f32[hidden], where there are any; unit: of length 1."""
    x = np.asarray(states[-1:] if pooling == "last" else states, np.float64)
    x = x - np.mean(x, axis=1, keepdims=True) if norm.kind == "layer" else x
    normed = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + norm.eps) * vectors.get("weight", 1.0) + vectors.get(
        "bias", 0.0
    )
    vector: NDArray[np.float64] = normed.mean(axis=0)
    if unit:
        vector = vector / max(float(np.linalg.norm(vector)), np.finfo(np.float64).tiny)
    return vector.astype(np.float32)
