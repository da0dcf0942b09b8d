"""How much memory a model takes on a device: found by laying it out in a dry run (device/dry_run.py)."""

from __future__ import annotations

from dataclasses import dataclass

from executor.choice.choice import GpuProfile
from executor.device.dry_run import DryRunMemory
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.weights import TensorFile, load_weights
from executor.memory.workspace import Workspace
from executor.model.config import ModelConfig, expected_tensors
from executor.model.token_launches import TokenLaunches, rope_cosines
from ptxgen.target import Target


@dataclass(frozen=True)
class MemoryNeeded:
    """Bytes of a model for one sequence of up to `context` tokens, without what alignment and the driver add."""

    weights: int
    cache: int
    activations: int
    context: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.weights + self.cache + self.activations

    def __str__(self) -> str:
        return (
            f"{self.total} bytes: weights {self.weights}, KV cache {self.cache} for a context of {self.context} tokens, "
            f"activations {self.activations}"
        )


def memory_needed(
    file: TensorFile, config: ModelConfig, context: int, target: Target, profile: GpuProfile | None = None
) -> MemoryNeeded:
    """What loading the model would allocate; nothing is. Without a `profile` the environment's counts. Raises what loading
    would raise."""
    device = DryRunMemory()
    weights = load_weights(device, file, list(expected_tensors(config)))
    cache = KvCache(device, config.layers, config.kv_heads, config.head_dim, context)
    table = GpuBuffer.from_numpy(device, rope_cosines(file, config, context), name="rope table")
    workspace = Workspace(device)
    TokenLaunches.build(config, weights, cache, workspace, table, profile or GpuProfile.from_environment())
    return MemoryNeeded(weights.nbytes, cache.nbytes, workspace.nbytes + table.nbytes, context)
