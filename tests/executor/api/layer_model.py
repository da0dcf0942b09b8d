"""The model whose layers tests of CudaExecutor run, and inputs for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor import CudaExecutor, GpuProfile
from tests.synthetic import Q, write_model

LAYERS, HIDDEN, FF, HEADS, KV_HEADS, HEAD_DIM, ROOM = 2, 256, 512, 4, 2, 64, 8
EPS = {"llama": 1e-5, "qwen2": 1e-6, "qwen3": 1e-6}
MIXED = {"": Q.Q4_K, "attn_v": Q.Q6_K, "attn_output": Q.Q8_0, "ffn_down": Q.Q5_0}
"""attn_v and ffn_down of types that an indexed layer once did not take."""


def opened(path: Path, arch: str, kernels: Path) -> CudaExecutor:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PTXGEN_CACHE_DIR", str(kernels))
        made = CudaExecutor("emulator", profile=GpuProfile())
    made.load_weights(path)
    made.init_kv_cache(LAYERS, HEADS, KV_HEADS, HEAD_DIM, ROOM, rope_style="adjacent" if arch == "llama" else "neox")
    return made


def written(folder: Path, arch: str) -> Path:
    shape = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "ff": FF}
    return write_model(folder / f"{arch}.gguf", arch, MIXED, **shape)  # type: ignore[arg-type]


def inputs(count: int = 3) -> list[NDArray[np.float32]]:
    return list(np.random.default_rng(5).standard_normal((count, HIDDEN)).astype(np.float32))
