"""A GGUF model -> what a program must know to run a token of it: kernels, tensors, buffers and the ordered launches, as plain
data. Writes no file and emits no text (write.py does); what a layer launches is executor/model/token_launches.py's business.

The model is laid out in a dry run with sizes that carry their formulae, so the description is what the executor runs and not a
second one beside it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from executor.bundle.formula import TracedInt, formula_of, traced
from executor.choice.choice import GpuProfile
from executor.device.allocations import ALIGNMENT
from executor.device.dry_run import DryRunMemory
from executor.gguf.directory import TensorInfo
from executor.gguf.gguf_file import GgufFile
from executor.layers.calls import KernelCall
from executor.layers.indexed import OUTPUTS, sites
from executor.memory.buffers import DeviceAllocation, GpuBuffer
from executor.memory.weights import Weights, load_weights
from executor.memory.workspace import Workspace
from executor.model.context import new_cache
from executor.model.fused_tensors import SeparateTensors
from executor.model.spec import Block, ModelSpec
from executor.model.step_graph import ModelGraph
from executor.model.tensors import expected_tensors
from executor.model.token_launches import TokenLaunches, rope_cosines, token_attention
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.quantize.outlier_flag import OutlierFlag
from ptxgen.target import Target


@dataclass(frozen=True)
class Description:
    """What one model needs. The mappings are ready for JSON; sizes in bytes.

    kernels: by id, the text of which is `str(kernel)`; initial: the content of each buffer that does not start empty.
    """

    numbers: Mapping[str, int]
    kernels: Mapping[str, KernelType]
    tensors: Mapping[str, dict[str, Any]]
    buffers: Mapping[str, dict[str, Any]]
    initial: Mapping[str, NDArray[Any]]
    calls: tuple[KernelCall, ...]
    launches: tuple[dict[str, Any], ...]
    before: tuple[dict[str, str], ...]
    results: Mapping[str, str]


def describe(
    file: GgufFile, spec: ModelSpec, context: int, target: Target, profile: GpuProfile, *, accurate: bool = False
) -> Description:
    """Lay the model out for one sequence of up to `context` tokens. accurate: as if every input had an outlier. Raises what
    loading it would raise."""
    spec.require_equal_layers("a bundle's sizes are formulae of one layer's")
    spec = _traced(spec)
    device = DryRunMemory()
    source = _TracedFile(file, spec)
    weights = load_weights(device, source, list(expected_tensors(spec)))
    cache = new_cache(device, spec, TracedInt(context, "context"))
    table = GpuBuffer.from_numpy(device, rope_cosines(source, spec, context), name="rope table")
    flagged = sites(spec.layers) if accurate else ()
    alone = token_attention(spec, profile)
    model = ModelGraph(spec, weights, profile, flagged)
    token = TokenLaunches.build(model, cache, Workspace(device), table, attention=alone, fused=False)
    calls = tuple(token.calls)
    owners = {weight.buffer.allocation: ("tensor", name) for name, weight in weights.items()}
    buffers = _used(calls, owners)
    owners |= {buffer.allocation: ("buffer", buffer.name) for buffer in buffers}
    launches = tuple(
        {"stage": str(call.place), "kernel": str(call.kernel), "arguments": _arguments(call, owners)} for call in calls
    )
    return Description(
        numbers=_numbers(spec) | {"context": context},
        kernels={str(call.kernel): call.kernel for call in calls},
        tensors=_tensors(weights, source.tensors, file.paths, launches),
        buffers=_buffers(buffers, calls),
        initial={b.name: b.to_numpy() for b in buffers if device.written(b.pointer)},
        calls=calls,
        launches=launches,
        before=(
            {"buffer": token.token.name, "value": "token"},
            {"buffer": token.position.name, "value": "position"},
            {"buffer": token.length.name, "value": "position + 1"},
        ),
        results={"logits": token.logits.name, "best": token.token.name},
    )


def _traced(spec: ModelSpec) -> ModelSpec:
    """The model with sizes that have their names as formulae: those of every block are the same."""

    def named(block: Block) -> Block:
        rope = replace(block.mixer.rope, dim=TracedInt(block.mixer.rope.dim, "rope_dim"))
        return replace(block, mixer=traced(replace(block.mixer, rope=rope)), ffn=traced(block.ffn))

    return traced(replace(spec, blocks=tuple(map(named, spec.blocks))))


def _numbers(spec: ModelSpec) -> dict[str, int]:
    """By name, the sizes that `_traced` named, and the number of layers."""
    values = ((f.name, getattr(record, f.name)) for record in (spec, spec.layer) for f in fields(record))
    return {"layers": spec.layers} | {name: int(value) for name, value in values if isinstance(value, TracedInt)}


class _TracedFile:
    """The file with tensor shapes that say which of the model's numbers they are."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        shapes, separate = expected_tensors(spec), SeparateTensors(file, spec)
        self.tensors: Mapping[str, TensorInfo] = {
            name: replace(info, shape=shapes[name]) for name, info in separate.tensors.items() if name in shapes
        }
        self.data = separate.data
        self.read_into = separate.read_into


def outlier_kernels(model: Description) -> dict[str, KernelType]:
    """By id, the kernels that look for outliers in the vectors that the model's matrices multiply (layers/outliers.py)."""
    kernels: dict[str, KernelType] = {}
    for call in model.calls:
        if call.place.operation in OUTPUTS:
            x: GpuBuffer = call.arguments[OUTPUTS[call.place.operation]]
            kernel = OutlierFlag(n=prod(x.shape))
            kernels[str(kernel)] = kernel
    return kernels


def _arguments(call: KernelCall, owners: Mapping[Any, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    arguments: dict[str, dict[str, Any]] = {}
    for name in call.kernel.signature():
        value = call.arguments[name]
        if not isinstance(value, GpuBuffer):
            arguments[name] = {"value": value}
            continue
        kind, owner = owners[value.allocation]
        offset = value.pointer - value.allocation.base
        arguments[name] = {kind: owner} | ({"offset": offset} if offset else {})
    return arguments


def _used(calls: Iterable[KernelCall], weights: Container[DeviceAllocation]) -> list[GpuBuffer]:
    """The buffers of the calls, without the weights: of each allocation the first one met."""
    met: dict[DeviceAllocation, GpuBuffer] = {}
    for call in calls:
        for value in call.arguments.values():
            if isinstance(value, GpuBuffer) and value.allocation not in weights:
                met.setdefault(value.allocation, value)
    return list(met.values())


def _tensors(
    weights: Weights, infos: Mapping[str, TensorInfo], paths: Sequence[Path], launches: tuple[dict[str, Any], ...]
) -> dict[str, dict[str, Any]]:
    users: dict[str, dict[str, None]] = {}  # a dict for its order
    for launch in launches:
        for argument in launch["arguments"].values():
            if "tensor" in argument:
                users.setdefault(argument["tensor"], {})[launch["kernel"]] = None
    return {
        name: {
            "format": weight.format.name,
            "rows": weight.n,
            "k": weight.k,
            "bytes": infos[name].nbytes,
            "file": paths[infos[name].part].name,
            "file_offset": infos[name].offset,
            "kernels": list(users[name]),
        }
        for name, weight in weights.items()
        if name in users
    }


def _buffers(buffers: Iterable[GpuBuffer], calls: Iterable[KernelCall]) -> dict[str, dict[str, Any]]:
    """The buffers' entries in the manifest. The shape of one that came from a host array has plain numbers; those with formulae
    are in the signature of the first kernel that takes it whole."""
    shapes: dict[GpuBuffer, tuple[int, ...]] = {}
    for call in calls:
        for name, argument in call.kernel.signature().items():
            value = call.arguments[name]
            if isinstance(argument, Array) and isinstance(value, GpuBuffer):
                shapes.setdefault(value, argument.shape)
    facts: dict[str, dict[str, Any]] = {}
    for buffer in buffers:
        shape = buffer.shape
        if not any(isinstance(extent, TracedInt) for extent in shape):
            shape = shapes.get(buffer, shape)
        facts[buffer.name] = {
            "dtype": buffer.dtype.name,
            "shape": list(shape),
            "formula": [formula_of(extent) for extent in shape],
            "bytes": buffer.nbytes,
            "align": ALIGNMENT,
        }
    return facts
