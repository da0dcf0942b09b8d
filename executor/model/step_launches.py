"""What a step of several rows launches: the calls of its kernels, in order, on buffers of a workspace. Runs nothing: engine.py
does."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from executor.choice.attention import AttentionChoice, choose_attention
from executor.choice.choice import GpuProfile
from executor.choice.persistent import PersistentGrid
from executor.launch.launch import LayerOperation
from executor.layers.activations import Activations
from executor.layers.calls import KernelCall, Recorder, in_order
from executor.layers.gather import gather, own_shape
from executor.layers.gemv import project
from executor.layers.indexed import build_indexed_weights
from executor.layers.paged_attention import RowPlaces, RowsAttention
from executor.layers.projection import bind, bind_rows
from executor.layers.rows import enqueue_rows, lines
from executor.layers.transformer import normalise, transformer_layers
from executor.memory.buffers import GpuBuffer
from executor.memory.paged_cache import Pages
from executor.memory.weights import Weights
from executor.memory.workspace import Workspace
from executor.model.config import ModelConfig
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup
from ptxgen.kernels.token.gather_rows import GatherRows
from ptxgen.target import Target
from ptxgen.types import U32

INPUTS = ("token", "slot", "position", "index", "lone")
"""What the host says of each row of a step, u32; index: of the scored rows, one after another; lone: the position of a row that
attends on its own."""


def rows_attention(config: ModelConfig, profile: GpuProfile, target: Target, kv_type: str) -> AttentionChoice:
    """How the rows of a model's steps attend."""
    return choose_attention(
        profile, target, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim, kv_type=kv_type
    )


@dataclass(frozen=True)
class StepModel:
    """What all steps of a model share. rope_table: f32[context, rope_dim / 2, 2]; flagged: operations whose output has an
    outlier (see executor/layers/outliers.py); attention: how rows attend; persistent: as transformer_layers."""

    config: ModelConfig
    weights: Weights
    pages: Pages
    rope_table: GpuBuffer
    profile: GpuProfile
    attention: AttentionChoice
    flagged: Collection[LayerOperation] = ()
    persistent: PersistentGrid | None = None


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
        config, shape = model.config, model.config.layer
        tiles = model.attention.most_tiles(rows) if lone < rows else 0
        inputs = workspace.buffer("inputs of rows", (lines_of(rows, tiles), width(rows)), U32)
        a = Activations.of(common, shape, rows)
        if tiles:
            a.attended.fill(0)  # nothing is written for rows that stay idle, and nobody should meet NaN there
        token, slot, position = (_line(inputs, name, rows) for name in ("token", "slot", "position"))
        places = RowPlaces(
            slot,
            position,
            model.pages.tables,
            lone=_line(inputs, "lone", lone) if lone else None,
            tiles=inputs.view(len(INPUTS) * width(rows) * U32.bytes, (tiles, 2)) if tiles else None,
        )
        recorder = Recorder(common)
        embedding = model.weights["token_embd.weight"]
        lookup = EmbeddingLookup(indirect=True, format=embedding.format, rows=config.vocab, k=config.hidden)
        enqueue_rows(recorder, "embed", lookup, rows, y=a.hidden, table=embedding.buffer, token=token)
        layers = build_indexed_weights(model.weights, config.layers, shape, model.profile, flagged=model.flagged, rows=rows)

        def attends(layer: int) -> RowsAttention:
            caches = model.pages.layers[layer]
            return RowsAttention(model.pages.shape, caches, places, model.rope_table, workspace, model.attention)

        for number in transformer_layers(recorder, shape, layers, attends, a, model.persistent):
            recorder.layer = number if number < config.layers else None
        return cls(rows, tiles, inputs, a, in_order(recorder.take(), early=model.profile.allows("dependent_launches")))


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
        config, a = model.config, body.activations
        recorder = Recorder(workspace)
        hidden = a.hidden
        if gathered:
            hidden = workspace.buffer("hidden of scored rows", lines(scored, config.hidden))
            x, y = a.hidden.view(0, (body.rows, config.hidden)), hidden.view(0, (scored, config.hidden))
            kernel = GatherRows(n=config.hidden, m=scored, rows=body.rows)
            recorder("scored_rows", kernel, y=y, x=x, index=_line(body.inputs, "index", scored))
        normed = workspace.buffer("normed of scored rows", lines(scored, config.hidden))
        logits = workspace.buffer("logits", lines(scored, config.vocab))
        own = logits if config.ranks == 1 else workspace.buffer("own logits", own_shape(scored, config.vocab, config.ranks))
        chosen = workspace.buffer("chosen", (scored,), U32)
        output = model.weights["token_embd.weight" if config.tied else "output.weight"]
        projection = bind(output, model.profile, accurate=(None, "output_norm") in model.flagged)
        projection = projection if scored == 1 else bind_rows(projection, model.profile, scored)
        rows = replace(a, hidden=hidden, normed=normed, rows=scored)
        normalise(recorder, "output_norm", config.layer, rows, model.weights["output_norm.weight"].buffer, (projection,))
        project(recorder, "output", projection, x=normed, y=own)
        if own is not logits:
            gather(recorder, "output", own, logits)
        enqueue_rows(recorder, "argmax", ArgMax(n=config.vocab), scored, out=chosen, x=logits)
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
