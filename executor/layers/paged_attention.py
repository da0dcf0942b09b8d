"""The attention of the rows of a step over a paged cache: which kernels run, on which buffers. Where the rows stand, and which
pages they see, is in device buffers, so that the same launches serve every mixture of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from executor.choice.attention import AttentionChoice
from executor.layers.activations import Activations
from executor.layers.attention import (
    add_biases,
    biases,
    biases_at_once,
    normalise_heads,
    output_of,
    planes_of_heads,
    rotate_rows,
)
from executor.layers.graph.binding import Binding
from executor.layers.graph.values import Form, StepValue
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from executor.memory.paged_cache import LayerPages
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import HalfForm
from ptxgen.kernels.attention.f16_split import HEAD_DIMS
from ptxgen.kernels.attention.flash_attention import FlashAttention
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.attention.paged_last_block import PagedAttentionLastBlock
from ptxgen.kernels.attention.paged_rope_scatter import PagedRopeScatter
from ptxgen.kernels.attention.split import HANDED
from ptxgen.kernels.rope.table import rotations


@dataclass(frozen=True)
class RowPlaces:
    """Where the rows of a step stand. slot, position: u32[rows]; a row at a position beyond the cache is idle. lone: u32[l],
    the positions of the first l rows again, but of those that attend on their own alone, None if no row does; tiles: u32[tiles,
    2], as flash_attention takes those of all others, None if there are none."""

    slot: GpuBuffer
    position: GpuBuffer
    lone: GpuBuffer | None
    tiles: GpuBuffer | None

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.slot.shape[0]


@dataclass(frozen=True)
class RowsAttention:
    """That of rows over the pages of one layer. rope_table: f32[max_len, rope_dim / 2, 2]. Parts of a sum go through the
    workspace."""

    pages: LayerPages
    places: RowPlaces
    rope_table: GpuBuffer
    workspace: Workspace
    choice: AttentionChoice

    def __call__(
        self, b: Binding, s: LayerShape, w: ValidatedLayerWeights, a: Activations, out: StepValue, form: Form | None, /
    ) -> None:
        """See AttentionLayout. A row sees what the other rows of its slot write in the same step, up to its own position. Of
        rows that are idle nothing is promised where there are tiles."""
        self._rotate_and_append(b, s, w, a)
        lone, tiles = self.places.lone, self.places.tiles
        if lone is not None:
            self._attend_alone(b, s, a, lone, out, None if tiles is not None else form)
        if tiles is not None:
            self._attend_in_tiles(b, s, a, tiles)

    def _rotate_and_append(self, b: Binding, s: LayerShape, w: ValidatedLayerWeights, a: Activations) -> None:
        if s.form.rotates_apart:
            rotate_rows(b, s, w, a, positions=self.places.position, table=self.rope_table)
            self._append(b, s, a, self._turns_nothing, {}, rotary_dim=2)
            return
        added = biases(w)
        if not biases_at_once(w):
            add_biases(b, w, a)
            added = {}
        normalise_heads(b, s, w, a)
        self._append(b, s, a, self.rope_table, added, rotary_dim=s.rope_dim)

    def _append(
        self, b: Binding, s: LayerShape, a: Activations, table: GpuBuffer, added: Mapping[str, GpuBuffer], *, rotary_dim: int
    ) -> None:
        """The launch that adds biases, rotates by this table, and appends."""
        style: dict[str, Any] = {"neox": s.rope_style == "neox", "bias": bool(added), "rotary_dim": rotary_dim}
        scatter = PagedRopeScatter(**style, heads=s.heads, rows=a.rows, **asdict(self.pages.shape))
        b("rope_scatter", scatter, **self._heads(s, a, "q", "k", "v"), **added, table=table, **self._seen(a.rows))

    @property
    def _turns_nothing(self) -> GpuBuffer:
        """A table of rotations of one pair, for heads that are rotated already: no other kernel appends to pages."""
        table = self.workspace.buffer("no rotation", (self.pages.shape.max_len, 1, 2))
        table.upload(rotations(self.pages.shape.max_len, np.zeros(1)))
        return table

    def _attend_alone(
        self, b: Binding, s: LayerShape, a: Activations, lone: GpuBuffer, result: StepValue, form: Form | None
    ) -> None:
        """The first rows, as many as `lone` has; zeros where it says that a row is idle."""
        (rows,) = lone.shape
        sizes: dict[str, Any] = {"heads": s.heads, "rows": rows, **asdict(self.pages.shape), **self.choice.alone._asdict()}
        kernel = PagedAttention(**sizes, scores=s.form.scores).filling()
        packs = b.fused and isinstance(form, HalfForm) and s.value_width in HEAD_DIMS
        plain = PagedAttentionLastBlock(**{one.name: getattr(kernel, one.name) for one in fields(kernel)})
        if self.choice.last_block and (plain.windows or not packs):
            self._attend_at_once(b, s, a, plain, lone, result, form)
            return
        parts = self.workspace.arrays(kernel, f"attention of {rows}", HANDED)
        q, out = (self._heads(s, a, name, rows=rows)[name] for name in ("q", "attended"))
        b("attention_parts", kernel, q=q, **parts, **self._seen(rows) | {"position": lone})
        shape: dict[str, Any] = {
            "rows": rows,
            "heads": s.heads,
            "head_dim": s.value_width,
            "max_len": self.pages.shape.max_len,
            "splits": kernel.splits,
            "least": kernel.least,
            "scores": kernel.scores,
        }
        reduce = PagedAttentionReduce(**shape)
        written = form if packs else planes_of_heads(form, s.value_width)
        _enqueue(b, reduce, result, written, {"out": out, **parts, "position": lone})

    def _attend_at_once(
        self,
        b: Binding,
        s: LayerShape,
        a: Activations,
        plain: PagedAttentionLastBlock,
        lone: GpuBuffer,
        result: StepValue,
        form: Form | None,
    ) -> None:
        """The same in one launch, bit for bit."""
        rows = plain.rows
        heads = self._heads(s, a, "q", "attended", rows=rows)
        scratch = self.workspace.arrays(plain, f"attention of {rows}", plain.scratch)
        arguments = {"out": heads["attended"], "q": heads["q"], **self._seen(rows), "position": lone, **scratch}
        _enqueue(b, plain, result, form if plain.windows else planes_of_heads(form, s.value_width), arguments)

    def _attend_in_tiles(self, b: Binding, s: LayerShape, a: Activations, tiles: GpuBuffer) -> None:
        count, parts = tiles.shape[0], self.choice.parts
        sizes: dict[str, Any] = {"heads": s.heads, "rows": a.rows, **asdict(self.pages.shape)}
        kernel = FlashAttention(**sizes, tiles=count, parts=parts, scores=s.form.scores)
        arguments = {"out": self._heads(s, a, "attended")["attended"], **self._heads(s, a, "q"), **self._seen(a.rows)}
        b("attention_tiles", kernel, **arguments, tiles=tiles)

    def _seen(self, rows: int) -> dict[str, Any]:
        slot, position = (one.view(0, (rows,)) for one in (self.places.slot, self.places.position))
        return {**self.pages.arrays, "tables": self.pages.tables, "slot": slot, "position": position}

    def _heads(self, s: LayerShape, a: Activations, *names: str, rows: int | None = None) -> dict[str, GpuBuffer]:
        """The heads of the rows, or of the first of them, f32[rows, heads, width] each."""
        sizes = {
            "q": (s.heads, s.head_dim),
            "attended": (s.heads, s.value_width),
            "k": (s.kv_heads, s.head_dim),
            "v": (s.kv_heads, s.value_width),
        }
        return {name: getattr(a, name).view(0, (rows or a.rows, *sizes[name])) for name in names}


def _enqueue(
    b: Binding,
    plain: PagedAttentionLastBlock | PagedAttentionReduce,
    out: StepValue,
    form: Form | None,
    arguments: Mapping[str, Any],
) -> None:
    """Launch the kernel that writes the result, with this form of it where launches are fused."""
    if form is None or not b.fused:
        b("attention", plain, **arguments)
    else:
        b.write("attention", replace(plain, output=output_of(form)), out, form, **arguments)
