"""The transformer layer of the dense architectures as operations, written once: for one token and for several, on one device
and on ranks, over any cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from executor.layers.activations import Activations, AttentionRows
from executor.layers.ffn import FeedForward, activate, activated
from executor.layers.graph.binding import Binding
from executor.layers.graph.gathers import GatherParts, TakePart
from executor.layers.graph.operations import Add, Attend, Norm, Operation, PlainLaunch, Swiglu
from executor.layers.graph.products import project_with_bias
from executor.layers.graph.values import Form, StepValue
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from ptxgen.kernels.activation.bias import ScaleDivide
from ptxgen.kernels.activation.scales import Clamp


class AttentionLayout(Protocol):
    """Attention over the keys and values of one layer, in some layout of a cache."""

    def __call__(
        self, b: Binding, s: LayerShape, w: ValidatedLayerWeights, a: Activations, out: StepValue, form: Form | None, /
    ) -> None:
        """Biases are added to a.q, a.k and a.v, queries and keys normalised where the architecture does, and rotated; keys and
        values join those of their sequences; `out`, in a.attended, is what each query attends to, written in this form too."""


@dataclass(frozen=True)
class Stream:
    """The residual stream: `part` is what this device adds to, `whole` what norms read. One value where no ranks share it."""

    part: StepValue
    whole: StepValue

    @classmethod
    def given(cls, a: Activations) -> Stream:
        """As a layer is given it."""
        whole = StepValue.of(a.hidden, a.rows)
        return cls(whole if a.split is None else StepValue.of(a.split.stream, a.rows), whole)


def transformer_layer(
    s: LayerShape,
    w: ValidatedLayerWeights,
    attention: AttentionLayout | None,
    a: Activations,
    stream: Stream,
    number: int | None = None,
) -> tuple[list[Operation], Stream]:
    """The tokens of `a` through one layer, in place; their keys and values go where `attention` keeps them, if it has any.
    number: of the layer, for messages and profiles. Gives the operations, and the stream after them."""
    form, middle = s.form, stream
    beside = read = _read_by_attention(s, a, stream.whole)
    operations: list[Operation] = []
    if s.heads:
        operations += _norm("attn_norm", s, w, stream.whole, read, number)
        if form.parallel and form.norms.ffn is not None:
            beside = StepValue.of(_spare(a), a.rows)
            operations += _norm("ffn_norm", s, w, stream.whole, beside, number)
        mixed = read
        if attention is not None:
            made, mixed = _attended(s, w, attention, read, a, number)
            operations += made
        made, middle = _add_to_stream("attn_output", s, w, mixed, stream, a, number)
        operations += made
    if not s.ff:
        return operations, middle
    if not form.parallel:
        beside = middle.whole if form.norms.ffn is None else StepValue.of(a.normed, a.rows)
        operations += _norm("ffn_norm", s, w, middle.whole, beside, number)
    inner = activated(a.ffn, a.rows)
    matrices = w.projections
    network = FeedForward(matrices["ffn_up"], matrices["ffn_down"], w.ffn_gate, form.activation, w.biases)
    operations += activate(network, a.ffn, beside, inner, number)
    if w.ffn_scales is not None:
        scaling = _divided(inner, w.ffn_scales, number)
        operations.append(scaling)
        (inner,) = scaling.writes
    normed, inner = _sub_norm("ffn_sub_norm", s, w.ffn_sub_norm, inner, a.activated_normed, number)
    operations += normed
    last, after = _add_to_stream("ffn_down", s, w, inner, middle, a, number)
    return [*operations, *last], after


def _attended(
    s: LayerShape,
    w: ValidatedLayerWeights,
    attention: AttentionLayout,
    read: StepValue,
    a: Activations,
    number: int | None,
) -> tuple[list[Operation], StepValue]:
    """Attention up to what attn_output multiplies. read: what Q, K and V are products of."""
    form = s.form
    q, k, v = (StepValue.of(one, a.rows) for one in (a.q, a.k, a.v))
    own = attended = StepValue.of(a.attended, a.rows)
    operations: list[Operation] = [*_queries_keys_values(s, w, read, (q, k, v), a, number)]
    gate = None if a.gate is None else StepValue.of(a.gate, a.rows)
    if gate is not None and w.attn_gate is not None:
        operations += project_with_bias("attn_gate", w.attn_gate, read, gate, None, number)
    enqueue = partial(_attend, attention, s.own, w.left_to_attention(form), a)
    operations.append(Attend(name="attention", layer=number, q=q, k=k, v=v, out=own, enqueue=enqueue))
    if gate is not None and a.gated is not None:
        gated = StepValue.of(a.gated, a.rows)
        operations.append(Swiglu(name="attn_gated", layer=number, gate=gate, up=own, y=gated, activation="sigmoid"))
        own = attended = gated
    if a.split is not None:
        attended = StepValue.of(a.split.attended, a.rows)
        operations.append(GatherParts(name="attention", layer=number, own=own, whole=attended))
    normed, attended = _sub_norm("attn_sub_norm", s, w.attn_sub_norm, attended, a.attended_normed, number)
    return [*operations, *normed], attended


def transformer_layers(
    shapes: Sequence[LayerShape],
    layers: Sequence[ValidatedLayerWeights],
    attention: Callable[[int], AttentionLayout],
    activations: Sequence[Activations],
) -> tuple[list[Operation], Stream]:
    """Tokens through all layers; attention: that of the layer of a number, if it has key-value heads; activations: of each
    layer, with one residual stream."""
    first = activations[0]
    stream = Stream.given(first)
    operations: list[Operation] = []
    if first.split is not None:
        taken = TakePart(name="own_stream", layer=0, whole=stream.whole, part=stream.part, pieces=first.split.pieces)
        operations.append(taken)
    for number, (shape, w, a) in enumerate(zip(shapes, layers, activations, strict=True)):
        layout = attention(number) if shape.kv_heads else None
        made, stream = transformer_layer(shape, w, layout, a, stream, number)
        operations += made
    return operations, stream


def attention_inputs(
    s: LayerShape,
    w: ValidatedLayerWeights,
    a: AttentionRows,
    x: StepValue,
    products: tuple[StepValue, StepValue, StepValue],
    number: int | None = None,
) -> Iterator[Operation]:
    """Queries, keys and values become the products of the norm of x, which stays as it is. AttentionLayout does the rest."""
    read = _read_by_attention(s, a, x)
    yield from _norm("attn_norm", s, w, x, read, number)
    yield from _queries_keys_values(s, w, read, products, a, number)


def _read_by_attention(s: LayerShape, a: AttentionRows, x: StepValue) -> StepValue:
    """What Q, K and V are products of: the norm of the stream, or the stream itself."""
    return x if s.form.norms.attention is None else StepValue.of(a.normed, a.rows)


def _norm(name: str, s: LayerShape, w: ValidatedLayerWeights, x: StepValue, y: StepValue, number: int | None) -> Iterator[Norm]:
    """One of the four, if there is one."""
    norms = s.form.norms
    gamma, tensor = {
        "attn_norm": (w.attn_norm, norms.attention),
        "attn_output_norm": (w.attn_output_norm, norms.attention_output),
        "ffn_norm": (w.ffn_norm, norms.ffn),
        "ffn_output_norm": (w.ffn_output_norm, norms.ffn_output),
    }[name]
    if tensor is not None:
        beta, kind = w.biases.get(tensor), s.form.norm_kind
        adds = name in ("attn_output_norm", "ffn_output_norm")
        eps = s.form.output_eps if adds and s.form.output_eps is not None else s.rms_eps
        yield Norm(name=name, layer=number, x=x, y=y, gamma=gamma, eps=eps, kind=kind, beta=beta)


def _sub_norm(
    name: str, s: LayerShape, gamma: GpuBuffer | None, x: StepValue, y: GpuBuffer | None, number: int | None
) -> tuple[list[Operation], StepValue]:
    """What the last matrix of a part multiplies: x, or its norm, in y, where there is one."""
    if gamma is None or y is None:
        return [], x
    kind, made = s.form.norm_kind, StepValue.of(y, x.tokens)
    return [Norm(name=name, layer=number, x=x, y=made, gamma=gamma, eps=s.rms_eps, kind=kind)], made


def _divided(x: StepValue, scales: GpuBuffer, number: int | None) -> PlainLaunch:
    """Each token's x over `scales`, in place."""
    kernel, made = ScaleDivide(n=scales.size, m=x.tokens), StepValue.of(x.buffer, x.tokens)
    arguments = {"x": x.buffer.view(0, (x.tokens, scales.size)), "scales": scales}
    return PlainLaunch(name="ffn_scales", layer=number, kernel=kernel, arguments=arguments, reads=(x,), writes=(made,))


def _queries_keys_values(
    s: LayerShape,
    w: ValidatedLayerWeights,
    read: StepValue,
    products: tuple[StepValue, StepValue, StepValue],
    a: AttentionRows,
    number: int | None,
) -> Iterator[Operation]:
    """The products; where they are clamped, or normalised as whole rows, that and biases come here, and else with the
    rotation."""
    form = s.form
    biases = (w.attn_q_bias, w.attn_k_bias, w.attn_v_bias) if form.adds_biases_first else (None, None, None)
    gammas = (w.attn_q_norm, w.attn_k_norm, None) if form.qk_norm == "row" else (None, None, None)
    matrices = w.projections
    for role, y, bias, gamma in zip(("attn_q", "attn_k", "attn_v"), products, biases, gammas, strict=True):
        made = y if gamma is None else StepValue.of(a.before_norm[role], a.rows)
        product = StepValue.of(made.buffer, a.rows) if form.clamp else made
        yield from project_with_bias(role, matrices[role], read, product, bias, number)
        if form.clamp:
            arguments = {"x": made.buffer.view(0, (made.buffer.size,))}
            clamp = Clamp(made.buffer.size, limit=form.clamp)
            yield PlainLaunch(
                name=f"{role}_clamp", layer=number, kernel=clamp, arguments=arguments, reads=(product,), writes=(made,)
            )
        if gamma is not None:
            name, beta = f"{role}_norm", w.biases.get(f"{role}_norm")
            yield Norm(name=name, layer=number, x=made, y=y, gamma=gamma, eps=s.rms_eps, kind=form.norm_kind, beta=beta)


def _add_to_stream(
    name: str,
    s: LayerShape,
    w: ValidatedLayerWeights,
    x: StepValue,
    before: Stream,
    a: Activations,
    number: int | None,
) -> tuple[list[Operation], Stream]:
    """The stream += x W^T, with the bias and the norm that the product has. Of a matrix that ranks share each adds its own rows
    to its own part, and then has all."""
    matrix, normed = w.projections[name], "attn_output_norm" if name == "attn_output" else "ffn_output_norm"
    delta = StepValue.of(a.projected, a.rows)
    operations = [*project_with_bias(name, matrix, x, delta, w.biases.get(name), number)]
    if a.spare is not None:
        for norm in _norm(normed, s, w, delta, StepValue.of(a.spare, a.rows), number):
            operations.append(norm)
            delta = norm.y
    part = whole = StepValue.of(a.stream, a.rows)
    scale = s.form.residual_scale
    operations.append(Add(name=f"{name}_residual", layer=number, x=before.part, delta=delta, y=part, scale=scale))
    if a.split is not None:
        whole = StepValue.of(a.hidden, a.rows)
        operations.append(GatherParts(name=name, layer=number, own=part, whole=whole))
    return operations, Stream(part, whole)


def _spare(a: Activations) -> GpuBuffer:
    assert a.spare is not None  # the form says whether there is one
    return a.spare


def _attend(
    attention: AttentionLayout,
    s: LayerShape,
    w: ValidatedLayerWeights,
    a: Activations,
    b: Binding,
    out: StepValue,
    form: Form | None,
) -> None:
    attention(b, s, w, a, out, form)
