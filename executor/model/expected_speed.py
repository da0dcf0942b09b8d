"""How fast a model is expected to decode one sequence on a GPU that need not be there: an estimate, from the bytes that a token
reads. Measures nothing; executor/choice/thresholds.py has the measured figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executor.choice.thresholds import LAYER, READ_SHARE
from executor.model.explain import Explained
from executor.model.spec import ModelSpec
from ptxgen.gpus.gpu import DEFAULT_GPU, Gpu, find_gpu, newest_for
from ptxgen.target import Target
from ptxgen.types import F32

GB: Final = 1 << 30
"""Bytes of the gigabyte in which memories of GPUs are sold."""


@dataclass(frozen=True)
class Estimate:
    """Bytes that a token reads when its sequence is `depth` tokens long, and tokens a second. An estimate."""

    depth: int
    weight_bytes: int
    cache_bytes: int
    tokens_per_second: float


def named_gpu(name: str | None) -> Gpu:
    """A GPU by its name (`l4`), or the fastest of a generation (`sm_89`). ArgumentError lists the known ones."""
    if name is None:
        return DEFAULT_GPU
    return newest_for(Target.parse(name)) if name.startswith("sm_") else find_gpu(name)


def memory_of(gpu: Gpu) -> int:
    """Bytes of its memory."""
    return gpu.memory_gb * GB


def expected_speed(spec: ModelSpec, rows: Sequence[Explained], gpu: Gpu, depth: int) -> Estimate:
    """That of a token. rows: the model's matrices (explain.py); depth: tokens in the cache, which is f32."""
    weights = sum(row.matrix.nbytes * count for row in rows for _, count in row.matrix.roles)
    seen = [(block.mixer.k_dim + block.mixer.v_dim, min(depth, block.mixer.scores.window or depth)) for block in spec.blocks]
    cache = sum(F32.bytes * width * tokens for width, tokens in seen)
    return Estimate(depth, weights, cache, 1 / expected_seconds(weights + cache, spec.layers, gpu))


def expected_seconds(read_bytes: int, layers: int, gpu: Gpu) -> float:
    """Of a token: all is read once at most of the memory's bandwidth, and each layer takes a time in which nothing is read."""
    return read_bytes / (READ_SHARE * gpu.bandwidth_gbps * 1e9) + LAYER * layers
