"""The transformer layer of the dense architectures as operations, written once: for one token and for several, on one device
and on ranks, over any cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from executor.layers.activations import Activations, AttentionRows
from executor.layers.ffn import activated, swiglu
from executor.layers.graph.binding import Binding
from executor.layers.graph.gathers import GatherParts, TakePart
from executor.layers.graph.operations import Add, Attend, Norm, Operation
from executor.layers.graph.products import project
from executor.layers.graph.values import Form, StepValue
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.projection import Projection
from executor.layers.shape import LayerShape


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
    attention: AttentionLayout,
    a: Activations,
    stream: Stream,
    number: int | None = None,
) -> tuple[list[Operation], Stream]:
    """The tokens of `a` through one layer, in place; their keys and values go where `attention` keeps them. number: of the
    layer, for messages and profiles. Gives the operations, and the stream after them."""
    q, k, v = (StepValue.of(one, a.rows) for one in (a.q, a.k, a.v))
    own = attended = StepValue.of(a.attended, a.rows)
    operations = [*attention_inputs(s, w, a, stream.whole, (q, k, v), number)]
    enqueue = partial(_attend, attention, s.own, w, a)
    operations.append(Attend(name="attention", layer=number, q=q, k=k, v=v, out=own, enqueue=enqueue))
    if a.split is not None:
        attended = StepValue.of(a.split.attended, a.rows)
        operations.append(GatherParts(name="attention", layer=number, own=own, whole=attended))
    added, middle = _add_to_stream("attn_output", w.attn_output, attended, stream, a, number)
    normed, made = StepValue.of(a.normed, a.rows), activated(a.ffn, a.rows)
    norm = Norm(name="ffn_norm", layer=number, x=middle.whole, y=normed, gamma=w.ffn_norm, eps=s.rms_eps)
    gated = swiglu(w.ffn_gate, w.ffn_up, a.ffn, normed, made, number)
    last, after = _add_to_stream("ffn_down", w.ffn_down, made, middle, a, number)
    return [*operations, *added, norm, *gated, *last], after


def transformer_layers(
    s: LayerShape, layers: Sequence[ValidatedLayerWeights], attention: Callable[[int], AttentionLayout], a: Activations
) -> tuple[list[Operation], Stream]:
    """The tokens of `a` through all layers; attention: that of the layer of a number."""
    stream = Stream.given(a)
    operations: list[Operation] = []
    if a.split is not None:
        operations.append(TakePart(name="own_stream", layer=0, whole=stream.whole, part=stream.part, pieces=a.split.pieces))
    for number, w in enumerate(layers):
        made, stream = transformer_layer(s, w, attention(number), a, stream, number)
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
    normed = StepValue.of(a.normed, a.rows)
    yield Norm(name="attn_norm", layer=number, x=x, y=normed, gamma=w.attn_norm, eps=s.rms_eps)
    for role, matrix, y in zip(("attn_q", "attn_k", "attn_v"), (w.attn_q, w.attn_k, w.attn_v), products, strict=True):
        yield project(role, matrix, normed, y, number)


def _add_to_stream(
    name: str, matrix: Projection, x: StepValue, before: Stream, a: Activations, number: int | None
) -> tuple[list[Operation], Stream]:
    """The stream += x W^T. Of a matrix that ranks share each adds its own rows to its own part, and then has all."""
    delta = StepValue.of(a.projected, a.rows)
    part = whole = StepValue.of(a.stream, a.rows)
    operations: list[Operation] = [
        project(name, matrix, x, delta, number),
        Add(name=f"{name}_residual", layer=number, x=before.part, delta=delta, y=part),
    ]
    if a.split is not None:
        whole = StepValue.of(a.hidden, a.rows)
        operations.append(GatherParts(name=name, layer=number, own=part, whole=whole))
    return operations, Stream(part, whole)


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
