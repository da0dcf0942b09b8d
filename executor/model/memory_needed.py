"""How much memory a model takes on a device: found by laying it out in a dry run (device/dry_run.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from executor.choice.choice import GpuProfile
from executor.choice.persistent import choose_persistent
from executor.device.dry_run import DryRunMemory
from executor.device.gathers import PEERS, Gathers
from executor.memory.buffers import GpuBuffer
from executor.memory.paged_cache import as_pages
from executor.memory.repacking import Repacking
from executor.memory.weights import TensorFile, load_weights
from executor.memory.workspace import Workspace
from executor.model.context import new_cache
from executor.model.matrices import repacked
from executor.model.metadata import LAYER, in_layer
from executor.model.prompt_chunks import prompt_steps
from executor.model.row_steps import CHUNK
from executor.model.spec import ModelSpec
from executor.model.split import loaded
from executor.model.step_graph import ModelGraph
from executor.model.step_launches import StepBody, StepModel, rows_attention
from executor.model.tensors import expected_tensors
from executor.model.token_launches import TokenLaunches, rope_cosines, token_attention
from ptxgen.kernels.attention.paged_cache import TILE as PAGE_UNIT
from ptxgen.target import Target


@dataclass(frozen=True)
class MemoryNeeded:
    """Bytes of a model for one sequence of up to `context` tokens, without what alignment and the driver add. prompts: what
    comes to the others when prompts of all lengths have been read. loading: what comes to the weights while they are loaded,
    and has gone before the rest comes."""

    weights: int
    cache: int
    activations: int
    prompts: int
    context: int
    loading: int = 0

    @property
    def total(self) -> int:
        """The most bytes that loading has allocated at a time."""
        return self.weights + max(self.cache + self.activations, self.loading)

    def __str__(self) -> str:
        more = f" ({self.loading} more at first)" if self.loading else ""
        return (
            f"{self.total} bytes: weights {self.weights}{more}, KV cache {self.cache} for a context of {self.context} tokens, "
            f"activations {self.activations}; prompts take up to {self.prompts} more"
        )


def memory_needed(
    file: TensorFile,
    spec: ModelSpec,
    context: int,
    target: Target,
    profile: GpuProfile | None = None,
    *,
    chunk: int = CHUNK,
    ranks: int = 1,
    gathers: Gathers = PEERS,
) -> MemoryNeeded:
    """What loading the model would allocate, and then prompts in steps of up to `chunk` tokens; nothing is. ranks: on each of
    so many devices that share it, and gather by `gathers`. Without a `profile` the environment's counts. Raises what loading
    would raise."""
    device, profile = DryRunMemory(ranks, gathers), profile or GpuProfile.from_environment()
    file, spec = loaded(file, spec, ranks)
    repacking = Repacking(repacked(file, spec, profile))
    weights = load_weights(device, file, list(expected_tensors(spec)), repacking=repacking)
    cache = new_cache(device, spec, context)
    table = GpuBuffer.from_numpy(device, rope_cosines(file, spec, context), name="rope table")
    workspace = Workspace(device)
    alone, few = token_attention(spec, profile), _first_of_each_kind(file, spec)
    persistent = choose_persistent(profile, target, 0) if ranks == 1 else None  # its blocks take no memory
    TokenLaunches.build(ModelGraph(few, weights, profile, persistent=persistent), cache, workspace, table, attention=alone)
    prompts = 0
    if context % PAGE_UNIT == 0:  # others are read token by token
        page = GpuBuffer.from_numpy(device, np.zeros((1, cache.pages), np.uint32), name="page table")
        attention = rows_attention(spec, profile, target, "f32")
        steps = StepModel(ModelGraph(few, weights, profile), as_pages(cache, page), table, attention)
        prompts = sum(_step_bytes(device, steps, rows) for rows in prompt_steps(context, chunk))
    staged = repacking.staged_bytes(file.tensors.values())
    return MemoryNeeded(weights.nbytes, cache.nbytes, workspace.nbytes + table.nbytes, prompts, context, staged)


def _first_of_each_kind(file: TensorFile, spec: ModelSpec) -> ModelSpec:
    """The model without its last layers, as far as these are like earlier ones: its steps take the same room, and are laid out
    sooner. Layers are alike if they compute the same with tensors of the same types."""
    types: dict[str, set[tuple[str, object]]] = {}
    for name, info in file.tensors.items():
        if (layer := LAYER.match(name)) is not None:
            types.setdefault(layer.group(), set()).add((in_layer(name), info.ggml_type))
    kinds = [(block, frozenset(types.get(f"blk.{layer}.", ()))) for layer, block in enumerate(spec.blocks)]
    return replace(spec, blocks=spec.blocks[: max(map(kinds.index, kinds)) + 1])


def _step_bytes(device: DryRunMemory, model: StepModel, rows: int) -> int:
    """Of a step of a prompt."""
    workspace = Workspace(device)
    StepBody.build(model, workspace, rows, 0 if model.attention.tiled(rows) else rows)
    return workspace.nbytes
