"""What m rows of activations go through together, on the device: products by a matrix, biases, and what a layer does before
attention, where each row is a sequence at a position of its own. What is launched is executor/layers' business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from executor.api.gemv import digits_of, require_one_input
from executor.api.positions import row_positions
from executor.base.arguments import instance, whole
from executor.choice.strategies import has_form_for_rows
from executor.launch.checks import require_apart
from executor.layers.activations import AttentionRows
from executor.layers.attention import rotate_rows
from executor.layers.graph.operations import Operation
from executor.layers.graph.products import project
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.layer_runner import LayerRunner
from executor.layers.operands import WeightLike
from executor.layers.projection import Projection, bind, bind_rows
from executor.layers.session import Session
from executor.layers.shape import LayerShape
from executor.layers.transformer import attention_inputs
from executor.memory.buffers import GpuBuffer
from executor.memory.single_weight import format_of
from ptxgen.errors import ArgumentError
from ptxgen.formats.format import Format
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv

ROLES = ("q", "k", "v")


@dataclass(frozen=True)
class BatchedRunner:
    """Rows of one session's activations; see CudaExecutor for what the arguments may be. Sizes that the weights know may be
    left out; ModelError if they contradict them. layers: whose attention the rows have."""

    session: Session
    layers: LayerRunner

    def gemv_with_fallback(
        self,
        type: str | int | Format,
        weight: WeightLike,
        packed_input: Any,
        packed_output: Any,
        m: int,
        n: int | None = None,
        k: int | None = None,
    ) -> None:
        """packed_output = packed_input W^T, f32[m, n] and f32[m, k], each row with the bits that gemv_dispatch gives it: by the
        profile's kernel for one row in its form for several, which reads the weights once for 8. A kernel without a form that
        keeps the bits runs once a row; then n and k must be multiples of 4, so that every row starts where a kernel may
        start."""
        m, projection = whole("m", m, 1), self._bound(type, weight, n=n, k=k)
        x, y = self._packed(projection, packed_input, packed_output, m)
        with self.session.launches() as launch:
            if m == 1 or has_form_for_rows(projection.kernel, alike=True):
                perform(launch, [_product(projection, x, y)])
                return
            perform(launch, [_product(projection, _row(x, row), _row(y, row)) for row in range(m)])

    def gemv_or_gemm(
        self,
        type: str | int | Format,
        weight: WeightLike,
        packed_input: Any,
        packed_output: Any,
        m: int,
        n: int | None = None,
        k: int | None = None,
    ) -> None:
        """packed_output = packed_input W^T, f32[m, n] and f32[m, k], with the kernel that the profile chooses for m rows: what
        was measured to be fastest for them, else the kernel for one row in its form for several. A row has the bits of
        gemv_dispatch where that is the same kernel, as always if the profile is batch_invariant. ArgumentError if the profile
        names a kernel that has no form for several rows."""
        m = whole("m", m, 1)
        projection = self._bound(type, weight, n=n, k=k, rows=m)
        x, y = self._packed(projection, packed_input, packed_output, m)
        with self.session.launches() as launch:
            perform(launch, [_product(projection, x, y)])

    def qkv_dp4a_q4k(
        self,
        q_weight: WeightLike,
        k_weight: WeightLike,
        v_weight: WeightLike,
        packed_input: Any,
        q: Any,
        k: Any,
        v: Any,
        m: int,
        q_dim: int | None = None,
        kv_dim: int | None = None,
        hidden_dim: int | None = None,
        digits: int | None = None,
    ) -> None:
        """q, k, v = packed_input times three Q4_K weights, f32[m, q_dim] and f32[m, kv_dim] twice from f32[m, hidden_dim]. The
        input is made into int8 planes once, whatever the profile's kernels. A row has the bits of hw_dp4a_q4k_gemv_into.
        digits: 1 to 3 (default: those of the profile's precision)."""
        m, digits = whole("m", m, 1), digits_of(self.session.profile, digits)
        weights = {"q": (q_weight, q_dim), "k": (k_weight, kv_dim), "v": (v_weight, kv_dim)}
        projections = {role: self._on_digits(one, digits, n=n, k=hidden_dim) for role, (one, n) in weights.items()}
        require_one_input(*projections.values())
        x = self._rows(packed_input, "packed_input", m, projections["q"].weight.k)
        outputs = {role: self._rows(to, role, m, projections[role].weight.n) for role, to in zip(ROLES, (q, k, v), strict=True)}
        _require_apart("batched_qkv_dp4a_q4k_gemv_into", {"packed_input": x}, outputs)
        with self.session.launches() as launch:
            read = StepValue.of(x)
            products = projections.items()
            perform(launch, [project(f"attn_{role}", one, read, StepValue.of(outputs[role])) for role, one in products])

    def bias_broadcast_add(self, packed: Any, bias: Any, dim: int, m: int) -> None:
        """packed += bias in each of m rows, in place; packed: f32[m, dim], bias: f32[dim]."""
        m, dim = whole("m", m, 1), whole("dim", dim, 1)
        x, added = self._rows(packed, "packed", m, dim), self.session.vector(bias, (dim,), "bias")
        _require_apart("batched_bias_broadcast_add", {"bias": added}, {"packed": x})
        with self.session.launches() as launch:
            launch("bias", BiasAdd(n=dim, m=m), x=x, bias=added)

    def qkv_rope_phase(
        self,
        input: Any,
        hidden_buf: Any,
        q: Any,
        k: Any,
        v: Any,
        layer_weights: ValidatedLayerWeights,
        m: int,
        positions: Any,
        hidden_dim: int,
        q_dim: int,
        kv_dim: int,
        epsilon: float,
    ) -> None:
        """What a layer does to m rows of the residual stream before attention. input, f32[m, hidden_dim], stays as it is; its
        RMSNorm goes into hidden_buf, of the same shape, and the products of that into q, f32[m, q_dim], and k and v, f32[m,
        kv_dim]. Biases are added and heads normalised where the layer has them, q and k rotated as init_kv_cache says; nothing
        joins a cache. Matrices go by the kernels that the layer is bound to, or by what was measured to be faster for m rows: a
        row has the bits that it has alone where it has them in batched_gemv_or_gemm.

        positions: of each row in its own sequence. Integers of the host are copied to the device; u32[m] there is read when the
        kernels run, so each replay of a graph serves what it holds then, and a capture takes nothing else. ArgumentError for a
        position of the host that the cache has no room for; a row at such a one on the device is not rotated."""
        m, w = whole("m", m, 1), instance("layer_weights", layer_weights, ValidatedLayerWeights, "build_indexed_weights")
        s = self.layers.sequence.shape(hidden_dim, w.projections["ffn_up"].weight.n, epsilon)
        _require_heads("q_dim", q_dim, s.heads, s)
        _require_heads("kv_dim", kv_dim, s.kv_heads, s)
        x, normed = (self._rows(one, name, m, s.hidden) for one, name in ((input, "input"), (hidden_buf, "hidden_buf")))
        sizes = {"q": (q, s.q_dim), "k": (k, s.k_dim), "v": (v, s.v_dim)}
        outputs = {role: self._rows(to, role, m, size) for role, (to, size) in sizes.items()}
        w = self._for_rows(w, s, m)
        where = row_positions(self.session, positions, self.layers.sequence.cache.max_len, m)
        _require_apart("batched_qkv_rope_phase", {"input": x, "positions": where.buffer}, {"hidden_buf": normed, **outputs})
        heads: dict[str, Any] = {role: to.view(0, (m, to.shape[1] // s.head_dim, s.head_dim)) for role, to in outputs.items()}
        rows = AttentionRows(hidden=x, normed=normed, **heads, rows=m)
        with self.session.launches() as launch:
            products = (StepValue.of(rows.q, m), StepValue.of(rows.k, m), StepValue.of(rows.v, m))
            perform(launch, [*attention_inputs(s, w, rows, StepValue.of(x), products)])
            rotate_rows(launch, s, w, rows, positions=where.buffer, table=self.layers.sequence.rope_table)
            where.upload()

    def _bound(
        self, type: str | int | Format, weight: WeightLike, *, n: int | None, k: int | None, rows: int = 1
    ) -> Projection:
        return bind(self.session.weight(weight, n=n, k=k, format=format_of(type)), self.session.profile, rows=rows)

    def _on_digits(self, weight: WeightLike, digits: int, *, n: int | None, k: int | None) -> Projection:
        matrix = self.session.weight(weight, n=n, k=k, format=format_of("Q4_K"))
        kernel = HwDp4aGemv(matrix.format, k=matrix.k, n=matrix.n, digits=digits)
        return Projection(matrix, kernel, f"{digits} int8 planes were asked for")

    def _for_rows(self, w: ValidatedLayerWeights, s: LayerShape, m: int) -> ValidatedLayerWeights:
        """With what makes queries, keys and values of m rows. ModelError if the weights are of another shape than the layer."""
        sizes = {"attn_q": s.q_dim, "attn_k": s.k_dim, "attn_v": s.v_dim}
        found = {role: w.projections[role] for role in sizes}
        for role, n in sizes.items():
            self.session.weight(found[role], n=n, k=s.hidden)
        q, k, v = (bind_rows(projection, self.session.profile, m) for projection in found.values())
        return replace(w, attn_q=q, attn_k=k, attn_v=v)

    def _packed(self, projection: Projection, input: Any, output: Any, m: int) -> tuple[GpuBuffer, GpuBuffer]:
        n, k = projection.shape
        x, y = self._rows(input, "packed_input", m, k), self._rows(output, "packed_output", m, n)
        require_apart(projection.kernel, {"packed_input": x}, {"packed_output": y})
        return x, y

    def _rows(self, value: Any, name: str, m: int, n: int) -> GpuBuffer:
        return self.session.vector(value, (m, n), name)


def _product(projection: Projection, x: GpuBuffer, y: GpuBuffer) -> Operation:
    return project("batched_gemv", projection, StepValue.of(x), StepValue.of(y))


def _row(packed: GpuBuffer, row: int) -> GpuBuffer:
    m, n = packed.shape
    return packed.view(row * packed.nbytes // m, (n,))


def _require_heads(name: str, size: int, heads: int, s: LayerShape) -> None:
    if whole(name, size, 1) != heads * s.head_dim:
        raise ArgumentError(f"{name} is {size}; the KV cache is of {heads} heads of {s.head_dim} values, {heads * s.head_dim}")


def _require_apart(what: str, read: Mapping[str, GpuBuffer], written: Mapping[str, GpuBuffer]) -> None:
    """LaunchError if what is written overlaps anything else."""
    for name, output in written.items():
        others = {other: buffer for other, buffer in written.items() if other != name}
        require_apart(what, {**read, **others}, {name: output})
