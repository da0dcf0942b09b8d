"""The weights of a layer, found once by name, validated once, and bound to the kernels that read them. Holds no memory: the
buffers are the weights'."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.launch.launch import LayerOperation
from executor.layers.projection import Projection, bind, bind_rows
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight

INPUTS = {
    "attn_q": "attn_norm",
    "attn_k": "attn_norm",
    "attn_v": "attn_norm",
    "attn_output": "attention",
    "ffn_gate": "ffn_norm",
    "ffn_up": "ffn_norm",
    "ffn_down": "ffn_swiglu",
    "output": "output_norm",
}
"""What multiplies a vector, and the operation that makes this vector."""

OUTPUTS = {"attn_norm": "y", "attention": "out", "ffn_norm": "y", "ffn_swiglu": "y", "output_norm": "y"}
"""These operations, and which argument of their kernel is the vector."""

LAYER_OUTPUTS = tuple(operation for operation in OUTPUTS if operation != INPUTS["output"])
"""Those that each layer has."""

BLOCK = "blk.{}"
"""How GGUF files name a layer."""


def sites(layers: int) -> list[LayerOperation]:
    """Where a model of so many layers makes a vector that a matrix multiplies."""
    inside = [LayerOperation(layer, operation) for layer in range(layers) for operation in LAYER_OUTPUTS]
    return [*inside, LayerOperation(None, INPUTS["output"])]


@dataclass(frozen=True)
class ValidatedLayerWeights:
    """All weights of one layer, none of them null, freed or of a wrong shape. Made by `layer_weights`, never by hand.

    Norms and biases are f32 vectors; None stands for what the architecture does not have."""

    attn_norm: GpuBuffer  # f32[hidden]
    attn_q: Projection  # [q_dim, hidden]
    attn_k: Projection  # [kv_dim, hidden]
    attn_v: Projection  # [kv_dim, hidden]
    attn_output: Projection  # [hidden, q_dim]
    ffn_norm: GpuBuffer  # f32[hidden]
    ffn_gate: Projection  # [ff, hidden]
    ffn_up: Projection  # [ff, hidden]
    ffn_down: Projection  # [hidden, ff]
    attn_q_bias: GpuBuffer | None = None  # f32[q_dim]
    attn_k_bias: GpuBuffer | None = None  # f32[kv_dim]
    attn_v_bias: GpuBuffer | None = None  # f32[kv_dim]
    attn_q_norm: GpuBuffer | None = None  # f32[head_dim]
    attn_k_norm: GpuBuffer | None = None  # f32[head_dim]

    @property
    def projections(self) -> dict[str, Projection]:
        """The matrices by role."""
        bound = {f.name: getattr(self, f.name) for f in fields(self)}
        return {role: value for role, value in bound.items() if isinstance(value, Projection)}


def layer_weights(
    weights: Mapping[str, LoadedWeight],
    prefix: str,
    shape: LayerShape,
    profile: GpuProfile,
    *,
    layer: int | None = None,
    flagged: Collection[LayerOperation] = (),
    norms: Mapping[str, GpuBuffer] | None = None,
    rows: int = 1,
) -> ValidatedLayerWeights:
    """The weights called `prefix`.attn_q.weight and so on.

    norms: vectors (`attn_norm`, `ffn_norm`) to be used instead of those of that name. flagged: operations whose output has an
    outlier; what reads it gets an accurate kernel. rows: how many tokens go through the layer at once. Raises ModelError for a
    weight that is not there, is freed, or has another shape than the layer; ArgumentError if no kernel reads its type."""
    s = shape
    norms = norms or {}

    def matrix(role: str, *, n: int, k: int) -> Projection:
        accurate = (layer, INPUTS[role]) in flagged
        bound = bind(_matrix(weights, f"{prefix}.{role}.weight", n=n, k=k), profile, accurate=accurate)
        return bound if rows == 1 else bind_rows(bound, profile, rows)

    def vector(name: str, n: int) -> GpuBuffer:
        return _vector(weights, f"{prefix}.{name}", n)

    def norm(name: str) -> GpuBuffer:
        return norms[name] if name in norms else vector(f"{name}.weight", s.hidden)

    def optional(name: str, n: int) -> GpuBuffer | None:
        return vector(name, n) if f"{prefix}.{name}" in weights else None

    return ValidatedLayerWeights(
        attn_norm=norm("attn_norm"),
        attn_q=matrix("attn_q", n=s.q_dim, k=s.hidden),
        attn_k=matrix("attn_k", n=s.kv_dim, k=s.hidden),
        attn_v=matrix("attn_v", n=s.kv_dim, k=s.hidden),
        attn_output=matrix("attn_output", n=s.hidden, k=s.q_dim),
        ffn_norm=norm("ffn_norm"),
        ffn_gate=matrix("ffn_gate", n=s.ff, k=s.hidden),
        ffn_up=matrix("ffn_up", n=s.ff, k=s.hidden),
        ffn_down=matrix("ffn_down", n=s.hidden, k=s.ff),
        attn_q_bias=optional("attn_q.bias", s.own.q_dim),
        attn_k_bias=optional("attn_k.bias", s.own.kv_dim),
        attn_v_bias=optional("attn_v.bias", s.own.kv_dim),
        attn_q_norm=optional("attn_q_norm.weight", s.head_dim),
        attn_k_norm=optional("attn_k_norm.weight", s.head_dim),
    )


def build_indexed_weights(
    weights: Mapping[str, LoadedWeight],
    layers: int,
    shape: LayerShape,
    profile: GpuProfile,
    *,
    prefix: Callable[[int], str] = BLOCK.format,
    flagged: Collection[LayerOperation] = (),
    rows: int = 1,
) -> tuple[ValidatedLayerWeights, ...]:
    """The weights of layers 0 to layers - 1. prefix: what the names of a layer start with. See layer_weights."""
    return tuple(
        layer_weights(weights, prefix(layer), shape, profile, layer=layer, flagged=flagged, rows=rows)
        for layer in range(layers)
    )


def _matrix(weights: Mapping[str, LoadedWeight], name: str, *, n: int, k: int) -> LoadedWeight:
    weight = weights[name]
    _need_memory(name, weight.buffer)
    if (weight.rows, weight.k) != (n, k):
        raise ModelError(f"{name} is {weight.rows} x {weight.k}; the layer needs {n} x {k}")
    return weight


def _vector(weights: Mapping[str, LoadedWeight], name: str, n: int) -> GpuBuffer:
    buffer = weights[name].buffer
    _need_memory(name, buffer)
    if buffer.shape != (n,):
        raise ModelError(f"{name} is {buffer.dtype}{list(buffer.shape)}; the layer needs f32[{n}]")
    return buffer


def _need_memory(name: str, buffer: GpuBuffer) -> None:
    if not buffer.pointer:
        raise ModelError(f"{name} is a null pointer")
    if not buffer.alive:
        raise ModelError(f"{name} was freed")
