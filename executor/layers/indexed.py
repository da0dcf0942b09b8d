"""The weights of a layer, found once by name, validated once, and bound to the kernels that read them. Holds no memory: the
buffers are the weights'."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, Self

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.launch.launch import LayerOperation
from executor.layers.projection import Projection, bind, bind_rows
from executor.layers.shape import Activation, LayerForm, LayerShape, Ungated, XieluNumbers
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from ptxgen.types import F32

INPUTS = {
    "attn_q": "attn_norm",
    "attn_k": "attn_norm",
    "attn_v": "attn_norm",
    "attn_gate": "attn_norm",
    "attn_output": "attention",
    "ffn_gate": "ffn_norm",
    "ffn_up": "ffn_norm",
    "ffn_down": "ffn_swiglu",
    "output": "output_norm",
}
"""What multiplies a vector, and the operation that makes this vector in a layer of Llama's form (see `input_of`)."""

ACTIVATIONS: Final[Mapping[tuple[Activation, bool], str]] = {
    ("silu", True): "ffn_swiglu",
    ("gelu", True): "ffn_geglu",
    ("silu", False): "ffn_silu",
    ("gelu", False): "ffn_gelu",
    ("relu2", False): "ffn_relu2",
}
"""The operation in the middle of a feed-forward network, by its activation and whether it is gated."""

XIELU: Final = "ffn_xielu"
"""That of an activation with numbers."""

OUTPUTS = {"attn_norm": "y", "attention": "out", "attn_gated": "y", "ffn_norm": "y", "output_norm": "y"}
OUTPUTS |= dict.fromkeys((*ACTIVATIONS.values(), XIELU, "attn_sub_norm", "ffn_sub_norm"), "y")
"""These operations, and which argument of their kernel is the vector."""

LAYER_OUTPUTS = tuple(operation for operation in OUTPUTS if operation != INPUTS["output"])
"""Those that layers have."""

LLAMA_OUTPUTS = tuple(dict.fromkeys(made for role, made in INPUTS.items() if role != "output"))
"""Those that each layer of Llama's form has."""

BLOCK = "blk.{}"
"""How GGUF files name a layer."""


def activation_name(activation: Ungated, gated: bool) -> str:
    """The operation in the middle of a feed-forward network."""
    return XIELU if isinstance(activation, XieluNumbers) else ACTIVATIONS[activation, gated]


def input_of(role: str, form: LayerForm) -> str | None:
    """The operation that makes the vector which a matrix of a layer multiplies. None if it is the residual stream, or
    scaled in place: in these outliers are not looked for."""
    if role == "ffn_down":
        if form.norms.activated is not None:
            return "ffn_sub_norm"
        if form.scaled:
            return None
        return activation_name(form.activation, form.gated)
    norms, made = form.norms, INPUTS[role]
    if made == "attention" and norms.attended is not None:
        return "attn_sub_norm"
    if made == "attention" and form.gated_attention:
        return "attn_gated"
    if made == "attn_norm":
        return made if norms.attention is not None else None
    if made == "ffn_norm" and norms.ffn is None:
        return "attn_norm" if form.parallel else None
    return made


def sites(layers: int) -> list[LayerOperation]:
    """Where a model of so many layers makes a vector that a matrix multiplies."""
    inside = [LayerOperation(layer, operation) for layer in range(layers) for operation in LAYER_OUTPUTS]
    return [*inside, LayerOperation(None, INPUTS["output"])]


@dataclass(frozen=True)
class ValidatedLayerWeights:
    """All weights of one layer, none of them null, freed or of a wrong shape. Made by `layer_weights`, never by hand.

    Norms and biases are f32 vectors; None stands for what the architecture, or this layer, does not have. biases: of norms and
    of matrices that have one, by the names of their tensors without `.bias`, beside those that are fields."""

    attn_norm: GpuBuffer | None  # f32[hidden]
    attn_q: Projection | None  # [q_dim, hidden]
    attn_k: Projection | None  # [k_dim, hidden]
    attn_v: Projection | None  # [v_dim, hidden]
    attn_output: Projection | None  # [hidden, mixed_dim]
    ffn_norm: GpuBuffer | None  # f32[hidden]
    ffn_gate: Projection | None  # [ff, hidden]
    ffn_up: Projection | None  # [ff, hidden]
    ffn_down: Projection | None  # [hidden, ff]
    attn_gate: Projection | None = None  # [attended_dim, hidden]
    attn_sub_norm: GpuBuffer | None = None  # f32[attended_dim]
    ffn_sub_norm: GpuBuffer | None = None  # f32[ff]
    ffn_scales: GpuBuffer | None = None  # f32[ff]
    attn_q_bias: GpuBuffer | None = None  # f32[q_dim]
    attn_k_bias: GpuBuffer | None = None  # f32[k_dim]
    attn_v_bias: GpuBuffer | None = None  # f32[v_dim]
    attn_q_norm: GpuBuffer | None = None  # f32[head_dim], f32[q_dim], or f32[heads, head_dim]
    attn_k_norm: GpuBuffer | None = None  # f32[head_dim], f32[k_dim], or f32[kv_heads, head_dim]
    attn_output_norm: GpuBuffer | None = None  # f32[hidden]
    ffn_output_norm: GpuBuffer | None = None  # f32[hidden]
    biases: Mapping[str, GpuBuffer] = field(default_factory=dict)

    def left_to_attention(self, form: LayerForm) -> Self:
        """Without what is done to queries, keys and values before attention."""
        left = self
        if form.adds_biases_first:
            left = replace(left, attn_q_bias=None, attn_k_bias=None, attn_v_bias=None)
        return replace(left, attn_q_norm=None, attn_k_norm=None) if form.qk_norm == "row" else left

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
    s, form, at = shape, shape.form, shape.form.norms
    norms = norms or {}

    def matrix(role: str, *, n: int, k: int) -> Projection:
        alone = role == "attn_output" and not s.kv_heads  # then it reads what queries are else products of
        made = input_of("attn_q" if alone else role, form)
        bound = bind(
            _matrix(weights, f"{prefix}.{role}.weight", n=n, k=k), profile, accurate=made is None or (layer, made) in flagged
        )
        return with_scale(bound if rows == 1 else bind_rows(bound, profile, rows), weights)

    def vector(name: str, n: int) -> GpuBuffer:
        return _vector(weights, f"{prefix}.{name}", n)

    def norm(name: str | None) -> GpuBuffer | None:
        if name is None or not form.norms_weighted:
            return None
        return norms[name] if name in norms else vector(f"{name}.weight", s.hidden)

    def optional(name: str, n: int) -> GpuBuffer | None:
        return vector(name, n) if f"{prefix}.{name}" in weights else None

    def head_norm(role: str, heads: int) -> GpuBuffer | None:
        name = f"{prefix}.attn_{role}_norm.weight"
        if name in weights and form.qk_norm == "rows":
            return _matrix(weights, name, n=heads, k=s.head_dim).buffer.view(0, (heads, s.head_dim), F32)
        return optional(f"attn_{role}_norm.weight", heads * s.head_dim if form.qk_norm == "row" else s.head_dim)

    lengths = dict.fromkeys(at.tensors, s.hidden)
    lengths |= dict.fromkeys(("ffn_gate", "ffn_up"), s.ff // s.ranks)
    lengths |= {"attn_q_norm": s.q_dim, "attn_k_norm": s.k_dim}
    lengths |= dict.fromkeys(("attn_output", "ffn_down"), s.hidden // s.ranks)
    found = {name: optional(f"{name}.bias", n) for name, n in lengths.items()}
    return ValidatedLayerWeights(
        attn_norm=norm(at.attention),
        attn_q=matrix("attn_q", n=s.q_dim, k=s.hidden) if s.kv_heads else None,
        attn_k=matrix("attn_k", n=s.k_dim, k=s.hidden) if s.kv_heads else None,
        attn_v=matrix("attn_v", n=s.v_dim, k=s.hidden) if s.kv_heads else None,
        attn_output=matrix("attn_output", n=s.hidden, k=s.mixed_dim) if s.heads else None,
        ffn_norm=norm(at.ffn),
        ffn_gate=matrix("ffn_gate", n=s.ff, k=s.hidden) if form.gated and s.ff else None,
        ffn_up=matrix("ffn_up", n=s.ff, k=s.hidden) if s.ff else None,
        ffn_down=matrix("ffn_down", n=s.hidden, k=s.ff) if s.ff else None,
        attn_gate=matrix("attn_gate", n=s.attended_dim, k=s.hidden) if form.gated_attention else None,
        attn_sub_norm=None if at.attended is None else vector(f"{at.attended}.weight", s.attended_dim),
        ffn_sub_norm=None if at.activated is None else vector(f"{at.activated}.weight", s.ff),
        ffn_scales=vector("ffn.act.scales", s.ff) if form.scaled else None,
        attn_q_bias=optional("attn_q.bias", s.own.q_dim),
        attn_k_bias=optional("attn_k.bias", s.own.k_dim),
        attn_v_bias=optional("attn_v.bias", s.own.v_dim),
        attn_q_norm=head_norm("q", s.heads),
        attn_k_norm=head_norm("k", s.kv_heads),
        attn_output_norm=norm(at.attention_output),
        ffn_output_norm=norm(at.ffn_output),
        biases={name: bias for name, bias in found.items() if bias is not None},
    )


def with_scale(projection: Projection, weights: Mapping[str, LoadedWeight]) -> Projection:
    """With the scale of its matrix, where there is one."""
    name = f"{projection.weight.name.removesuffix('.weight')}.scale"
    return replace(projection, scale=_vector(weights, name, 1)) if name in weights else projection


def build_indexed_weights(
    weights: Mapping[str, LoadedWeight],
    shapes: Sequence[LayerShape],
    profile: GpuProfile,
    *,
    prefix: Callable[[int], str] = BLOCK.format,
    flagged: Collection[LayerOperation] = (),
    rows: int = 1,
) -> tuple[ValidatedLayerWeights, ...]:
    """The weights of layers 0 to len(shapes) - 1. prefix: what the names of a layer start with. See layer_weights."""
    return tuple(
        layer_weights(weights, prefix(layer), shape, profile, layer=layer, flagged=flagged, rows=rows)
        for layer, shape in enumerate(shapes)
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
