"""What a step of several rows launches: the calls of its kernels, in order, on buffers of a workspace. Runs nothing: engine.py
does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from executor.choice.attention import AttentionChoice, choose_attention
from executor.choice.choice import GpuProfile
from executor.layers.activations import Activations
from executor.layers.calls import KernelCall, Recorder
from executor.layers.graph.neighbours import in_order
from executor.layers.graph.operations import Operation, PlainLaunch
from executor.layers.graph.rules import perform
from executor.layers.graph.values import StepValue, lines
from executor.layers.paged_attention import RowPlaces, RowsAttention
from executor.memory.buffers import GpuBuffer
from executor.memory.paged_cache import LayerPages
from executor.memory.workspace import Workspace
from executor.model.spec import ModelSpec
from executor.model.step_graph import ModelGraph
from executor.model.token_launches import tables_of
from ptxgen.kernels.token.gather_rows import GatherRows
from ptxgen.target import Target
from ptxgen.types import U32

INPUTS = ("token", "slot", "position", "index", "lone")
"""What the host says of each row of a step, u32; index: of the scored rows, one after another; lone: the position of a row that
attends on its own."""


def rows_attention(config: ModelSpec, profile: GpuProfile, target: Target, kv_type: str) -> AttentionChoice:
    """How the rows of a model's steps attend."""
    s = config.layer
    sizes: dict[str, Any] = {"heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim, "value_dim": s.value_dim}
    return choose_attention(profile, target, **sizes, kv_type=kv_type)


@dataclass(frozen=True)
class StepModel:
    """What all steps over pages share. pages: of each layer; rope_table: of `rope_cosines`; attention: how tokens attend."""

    graph: ModelGraph
    pages: Sequence[LayerPages]
    rope_table: GpuBuffer
    attention: AttentionChoice


@dataclass(frozen=True)
class StepBody:
    """The rows through embedding and layers. inputs: u32[lines, width], a line for each of INPUTS of which the first `rows`
    count, then `tiles` of two numbers; activations.hidden: what comes out, f32[rows, hidden]."""

    rows: int
    tiles: int
    inputs: GpuBuffer
    activations: Activations
    calls: tuple[KernelCall, ...]

    @property
    def tokens(self) -> GpuBuffer:
        """u32[rows]: the line of the inputs that holds them."""
        return _line(self.inputs, "token", self.rows)

    @classmethod
    def build(
        cls, model: StepModel, workspace: Workspace, rows: int, lone: int, common: Workspace | None = None
    ) -> StepBody:  # fmt: skip
        """Choose the kernels and lay the buffers out in the workspace. lone: of the rows, how many attend on their own; they
        are the first ones, and the others are in tiles. common: where those buffers are that do not depend on that, which
        bodies of as many rows may share; the workspace, unless told otherwise."""
        common = workspace if common is None else common
        build = partial(cls._build, model, workspace, rows, lone, common)
        return workspace.laid_out(lambda: common.laid_out(build))

    @classmethod
    def _build(cls, model: StepModel, workspace: Workspace, rows: int, lone: int, common: Workspace) -> StepBody:
        spec = model.graph.spec
        tiles = model.attention.most_tiles(rows) if lone < rows else 0
        inputs = workspace.buffer("inputs of rows", (lines_of(rows, tiles), width(rows)), U32)
        activations = Activations.of_layers(common, spec.shapes, rows)
        a = activations[0]
        if tiles:  # nothing is written for rows that stay idle, and nobody should meet NaN there
            max((own.attended for own in activations), key=lambda attended: attended.nbytes).fill(0)
        token, slot, position = (_line(inputs, name, rows) for name in ("token", "slot", "position"))
        places = RowPlaces(
            slot,
            position,
            lone=_line(inputs, "lone", lone) if lone else None,
            tiles=inputs.view(len(INPUTS) * width(rows) * U32.bytes, (tiles, 2)) if tiles else None,
        )

        tables = tables_of(model.rope_table, spec)

        def attends(layer: int) -> RowsAttention:
            table = tables[spec.rope_of(layer)]
            return RowsAttention(model.pages[spec.cache_of(layer)], places, table, workspace, model.attention)

        recorder = Recorder(common)
        layers, _ = model.graph.layers(activations, attends)
        perform(recorder, [*model.graph.embed(common, a.hidden, token, position, rows), *layers], model.graph.setting(common))
        return cls(
            rows, tiles, inputs, a, in_order(recorder.take(), dependent=model.graph.profile.allows("dependent_launches"))
        )


@dataclass(frozen=True)
class StepHead:
    """The scored rows through the head: logits, f32[scored, vocab], and the chosen tokens, u32[scored]: the likeliest. Without
    a gather all rows of the body are scored."""

    scored: int
    logits: GpuBuffer
    chosen: GpuBuffer
    calls: tuple[KernelCall, ...]

    @classmethod
    def build(cls, model: StepModel, workspace: Workspace, body: StepBody, scored: int, *, gathered: bool) -> StepHead:
        """For `scored` rows of a body, in a workspace of their own."""
        hidden, a = model.graph.spec.hidden, body.activations
        recorder, stream, operations = Recorder(workspace), a.hidden, list[Operation]()
        if gathered:
            stream = workspace.buffer("hidden of scored rows", lines(scored, hidden))
            x, y = a.hidden.view(0, (body.rows, hidden)), stream.view(0, (scored, hidden))
            kernel, index = GatherRows(n=hidden, m=scored, rows=body.rows), _line(body.inputs, "index", scored)
            operations.append(PlainLaunch(name="scored_rows", kernel=kernel, arguments={"y": y, "x": x, "index": index}))
        normed = workspace.buffer("normed of scored rows", lines(scored, hidden))
        chosen = workspace.buffer("chosen", (scored,), U32)
        head, logits = model.graph.head(workspace, StepValue.of(stream, scored), normed, chosen)
        perform(recorder, [*operations, *head])
        return cls(scored, logits, chosen, recorder.take())


ALIGNED = 4
"""Numbers of a line of the inputs: a multiple of this, so that each starts at 16 bytes."""


def width(rows: int) -> int:
    """Numbers of a line of the inputs."""
    return -(-rows // ALIGNED) * ALIGNED


def lines_of(rows: int, tiles: int) -> int:
    """Lines of the inputs."""
    return len(INPUTS) + -(-2 * tiles // width(rows))


def _line(inputs: GpuBuffer, name: str, length: int) -> GpuBuffer:
    """The first numbers of a line of the inputs."""
    _, numbers = inputs.shape
    return inputs.view(INPUTS.index(name) * numbers * U32.bytes, (length,))
