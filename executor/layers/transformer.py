"""The transformer layer of the dense architectures, written once, for one token and for the rows of a step: which kernels run,
in which order, on which buffers.

It says nothing about how they run. `launch` is called once for each kernel; what it does with the call (run it, record it for a
graph) is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Protocol

from executor.base.errors import LaunchError
from executor.choice.persistent import PersistentGrid
from executor.layers.activations import Activations, AttentionRows
from executor.layers.calls import LaunchQueue
from executor.layers.ffn import swiglu
from executor.layers.gather import gather, gather_norm
from executor.layers.gemv import (
    NextNorm,
    Product,
    digits_gathered,
    form_read,
    gathers_digits,
    project_all,
    project_onto,
    project_onto_and_leave_norm,
    receive_parts,
)
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.packed import Form
from executor.layers.persistent import enqueue_persistent, persistent_layer
from executor.layers.projection import Projection
from executor.layers.rows import enqueue_rows, for_rows, lines, shaped
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.token.gather_rows import GatherRows


class Attention(Protocol):
    """Attention over the keys and values of one layer, wherever they are."""

    def __call__(
        self, launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: Activations, /, *, form: Form | None = None
    ) -> None:
        """Biases are added to a.q, a.k and a.v, queries and keys normalised where the architecture does, and rotated; keys and
        values join those of their sequences; a.attended is what each query attends to; `form` is what it is read as."""


def transformer_layer(
    launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, attention: Attention, a: Activations
) -> None:
    """The rows of `a` through one layer: a.hidden is updated in place, their keys and values go where `attention` keeps them.

    Where `launch.fused`, neighbouring steps are one launch if there is a kernel for them; the bits are the same."""
    attention_inputs(launch, s, w, a)
    attend(launch, s, w, attention, a)
    after_attention(launch, s, w, a, None)


def attend(launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, attention: Attention, a: Activations) -> None:
    """a.attended becomes what each query attends to. Of a layer that is split each rank has its own heads, and then all."""
    if a.split is None:
        attention(launch, s, w, a, form=form_read(w.attn_output))
        return
    attention(launch, s.own, w, a, form=None)
    own = _flat(a.attended, a.rows)
    digits = digits_gathered(launch, w.attn_output, own)
    gather(launch, "attention", own, a.split.attended, digits, sent=receive_parts(launch, w.attn_output))


def after_attention(
    launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: Activations, behind: NextNorm | None
) -> None:  # fmt: skip
    """a.hidden becomes what the layer makes of it and of a.attended. behind: the norm that comes behind the layer."""
    attended = _flat(a.attended, a.rows) if a.split is None else a.split.attended
    add_to_stream(launch, "attn_output", s, w.attn_output, attended, a, NextNorm(w.ffn_norm, (w.ffn_gate, w.ffn_up)))
    normalise(launch, "ffn_norm", s, a, w.ffn_norm, (w.ffn_gate, w.ffn_up))
    swiglu(launch, w.ffn_gate, w.ffn_up, w.ffn_down, a.ffn, x=a.normed)
    add_to_stream(launch, "ffn_down", s, w.ffn_down, a.ffn.result, a, behind)


def add_to_stream(
    launch: LaunchQueue, operation: str, s: LayerShape, matrix: Projection, x: GpuBuffer, a: Activations, norm: NextNorm | None
) -> None:  # fmt: skip
    """a.hidden += x W^T; `norm`, which comes next, is left to its readers where that can be done at once. Of a matrix that is
    split each rank adds its own rows to its own part of the stream, and then has all: of the norm where that is left, else of
    the stream."""
    if norm is not None and a.split is None:
        left = project_onto_and_leave_norm(
            launch, operation, matrix, norm, s.rms_eps, x=x, stream=a.hidden, normed=a.normed
        )  # fmt: skip
        if left:
            return
    project_onto(launch, operation, matrix, x=x, stream=a.stream, product=a.projected)
    if a.split is None:
        return
    digits = norm.left_as if norm is not None and matrix.fusions.normed else None
    if norm is None or digits is None or not gathers_digits(launch, matrix, a.stream):
        gather(launch, operation, a.stream, a.hidden)
    else:
        sent = not norm.by_many and receive_parts(launch, *norm.readers)
        gather_norm(
            launch, operation, a.stream, a.hidden, digits, normed=a.normed, gamma=norm.gamma, eps=s.rms_eps, sent=sent
        )  # fmt: skip


def take_own_stream(launch: LaunchQueue, s: LayerShape, a: Activations) -> None:
    """Before the first of the layers that are split: what a rank's part of a.hidden is."""
    assert a.split is not None
    own = s.hidden // s.ranks
    kernel = GatherRows(n=own, m=a.rows, rows=a.rows * s.ranks)
    x, y = a.hidden.view(0, (a.rows * s.ranks, own)), a.stream.view(0, (a.rows, own))
    launch("own_stream", kernel, y=y, x=x, index=a.split.pieces)


def transformer_layers(
    launch: LaunchQueue,
    s: LayerShape,
    layers: Sequence[ValidatedLayerWeights],
    attention: Callable[[int], Attention],
    a: Activations,
    persistent: PersistentGrid | None = None,
    behind: NextNorm | None = None,
) -> Iterator[int]:
    """The rows of `a` through all layers, as `transformer_layer` for each; attention: that of the layer of a number. Gives the
    number of a layer before its launches, and at last how many there are. persistent: a row that stands alone, and is
    `launch.fused`, goes from one attention to the next by one launch, wherever there is a kernel for it; the bits are the
    same. behind: the norm that comes behind the last layer."""
    staying = persistent if launch.fused and a.rows == 1 else None
    begun = False
    for number, w in enumerate(layers):
        yield number
        following = layers[number + 1] if number + 1 < len(layers) else None
        kernel = persistent_layer(s, w, following, staying) if staying is not None else None
        if number == 0 and a.split is not None:
            take_own_stream(launch, s, a)
        if not begun:
            attention_inputs(launch, s, w, a)
        attend(launch, s, w, attention(number), a)
        begun = kernel is not None
        if kernel is not None:
            enqueue_persistent(launch, s, w, following, a, kernel)
        else:
            norm = behind if following is None else NextNorm(following.attn_norm, following.attention_readers)
            after_attention(launch, s, w, a, norm)
    yield len(layers)


def attention_inputs(launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: AttentionRows) -> None:
    """a.q, a.k and a.v become the products of the norm of a.hidden, which stays as it is. What comes next is Attention's."""
    normalise(launch, "attn_norm", s, a, w.attn_norm, w.attention_readers)
    matrices = (("attn_q", w.attn_q, a.q), ("attn_k", w.attn_k, a.k), ("attn_v", w.attn_v, a.v))
    project_all(launch, *(Product(role, matrix, _flat(out, a.rows)) for role, matrix, out in matrices), x=a.normed)


def normalise(
    launch: LaunchQueue, operation: str, s: LayerShape, a: AttentionRows, gamma: GpuBuffer, readers: Sequence[Projection]
) -> None:
    """a.normed becomes the RMSNorm of each row of a.hidden, ready for its readers; nothing is launched where it was left to
    them. The digits of a norm are none of its f32 values (RmsNorm), so they are made here even where nothing is fused.
    LaunchError where a.hidden is not there, since another norm of it was gathered alone."""
    form, arguments = form_read(*readers), {"y": a.normed, "x": a.hidden, "gamma": gamma, "eps": s.rms_eps}
    if launch.packed.has_norm(a.hidden, a.normed, gamma, NextNorm(gamma, readers).left_as):
        return
    if launch.packed.lacks(a.hidden):
        raise LaunchError(f"{operation} is of {a.hidden}, of which another norm was gathered alone; gather the stream first")
    if form is None or (isinstance(form, HalfForm) and not launch.fused):
        enqueue_rows(launch, operation, RmsNorm(hidden=s.hidden), a.rows, **arguments)
        return
    kernel: KernelType
    if isinstance(form, HalfForm):
        kernel = RmsNorm(hidden=s.hidden, m=a.rows, **asdict(form))
    else:
        kernel = for_rows(RmsNorm(hidden=s.hidden, digits=form), a.rows, y=a.normed, x=a.hidden, gamma=gamma)
    launch.packed.write(launch, operation, kernel, a.normed, form, **shaped(kernel, **arguments))


def _flat(x: GpuBuffer, rows: int) -> GpuBuffer:
    """The heads of a row as one vector."""
    heads, head_dim = x.shape[-2:]
    return x.view(0, lines(rows, heads * head_dim))
