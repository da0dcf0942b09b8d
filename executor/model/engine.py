"""Steps over many sequences of a model, whose keys and values stand in pages: tokens of several sequences, chunks of prompts,
drafts, or all of these at once. Which rows make a step is the caller's business (scheduler.py)."""

from __future__ import annotations

from collections.abc import Sequence

from executor.base.arguments import instance, one_of, token, whole
from executor.base.errors import ModelError
from executor.base.progress import Progress
from executor.choice.attention import AttentionChoice
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher
from executor.measure.debug import watch
from executor.memory.buffers import GpuBuffer
from executor.memory.paged_cache import PagedKvCache, PagedShape
from executor.model.decoder import Decoder
from executor.model.paying_rows import StepCost, paying
from executor.model.row_steps import CHUNK, MOST_ROWS, RowSteps, StepScores, likely_sizes
from executor.model.step import Row
from executor.model.step_launches import StepModel, rows_attention
from executor.model.token_launches import rope_cosines
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.kv_type import KV_TYPES

PAGE_LEN = 32
"""Positions of a page, unless told otherwise: the fewest that kernels take, so that most of a common prefix is shared."""


class Engine:
    """Steps over `slots` sequences at a time, of a model whose weights a Decoder has. Keys and values are in pages of its own;
    the Decoder rests meanwhile, if its sequence has no tokens, and its memory is taken anew when it gets some.

    If the profile is `batch_invariant`, or has no measurements of several rows, a row has the same bits in every step that it
    can be in: alone, among others, as part of a prompt. Else its last bits may depend on how many rows the step has. What a
    step is captured from (weights, profile, flagged inputs) may change: the next step prepares and captures anew by itself.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        slots: int,
        pages: int | None = None,
        page_len: int = PAGE_LEN,
        context: int | None = None,
        rows: int = CHUNK,
        kv_type: str = "f32",
        forgets: bool = False,
    ) -> None:
        """slots: sequences that can be in one step; pages: of page_len positions each (default: so many that all slots can be
        full); context: most positions of a sequence, a multiple of 32 (default: the decoder's, rounded down); rows: most of a
        step; kv_type: how keys and values are held: `f32`, `f16` or `q8_0`; forgets: layers with a window have pages of their
        own, as many as steps need and as many again, for what is behind the window is given back; `set_table` is told of those,
        too. Raises ArgumentError for what is out of range, ModelError for a model of a bundle, DeviceError when memory is full:
        nothing stays allocated then."""
        instance("decoder", decoder, Decoder)
        if decoder.modules.bundle is not None:
            raise ModelError("a bundle has the kernels of one sequence; load the model without it for several")
        spec = decoder.spec
        page_len, slots = whole("page_len", page_len, 1), whole("slots", slots, 1)
        if context is None:
            context = decoder.context // page_len * page_len
        context = whole("context", context, 1, decoder.context)
        pages = slots * -(-context // page_len) if pages is None else whole("pages", pages, 1)
        kind = one_of("kv_type", kv_type, KV_TYPES)
        layer = spec.layer
        shape = PagedShape(layer.own.kv_heads, layer.head_dim, page_len, pages, slots, context, kind, layer.value_dim)
        self.decoder = decoder
        self.device = decoder.device
        self.vocab = spec.vocab
        self.rows = whole("rows", rows, 1, MOST_ROWS)
        self.launcher = Launcher(self.device, decoder.modules)
        watch(self.launcher)
        self.steps = RowSteps(self.launcher, decoder.modules)
        self._cost: tuple[object, StepCost] | None = None  # and what it depends on
        decoder.rest()
        windows = [spec.blocks[number].mixer.scores.window for number in spec.cached]
        fewer = window_pages(windows, shape, self.rows) if forgets else None
        self.cache = PagedKvCache(
            self.device, len(spec.cached), shape, spec.cached_heads, windows=windows, window_pages=fewer
        )  # fmt: skip
        try:
            cosines = rope_cosines(decoder.file, spec, context)
            self._rope = GpuBuffer.from_numpy(self.device, cosines, name="rope table")
        except BaseException:
            self.cache.free()
            raise

    @property
    def slots(self) -> int:
        """How many page tables there are."""
        return self.cache.shape.slots

    @property
    def context(self) -> int:
        """Most positions of a sequence."""
        return self.cache.shape.max_len

    @property
    def page_len(self) -> int:
        """Positions of a page."""
        return self.cache.shape.page_len

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self.cache.shape.pages

    @property
    def window(self) -> int | None:
        """As StepEngine.window."""
        return self.cache.window

    @property
    def window_pages(self) -> int:
        """How many pages layers with a window have of their own."""
        return self.cache.window_pages

    @property
    def model(self) -> object:
        """What keys and values depend on: weights, profile and flagged inputs."""
        return self.decoder.weights.generation, self.decoder.profile, self.decoder.outliers()

    @property
    def attention(self) -> AttentionChoice:
        """How the rows of a step attend now, and why."""
        decoder = self.decoder
        return rows_attention(decoder.spec, decoder.profile, self.device.target, self.cache.shape.kv_type)

    def paying_rows(self, waiting: int) -> int:
        """As StepEngine.paying_rows: as many as make most tokens a second (paying_rows.py)."""
        decoder = self.decoder
        if self._cost is None or self._cost[0] != self.model:
            self._cost = self.model, StepCost.of(decoder.spec, decoder.weights, decoder.profile)
        return paying(self._cost[1].seconds, min(whole("waiting", waiting, 1), self.rows))

    def set_table(self, slot: int, pages: Sequence[int], window: Sequence[int | None] | None = None) -> None:
        """The pages of a slot's sequence, in the order of its positions. Errors as PagedKvCache.set_table."""
        self.cache.set_table(slot, pages, window)

    def step(self, rows: Sequence[Row]) -> StepScores:
        """Run rows, at most `self.rows`. Raises ArgumentError for none or too many, a slot, token or position that there is
        not, and a position without a page; nothing has run then."""
        self._check(rows)
        self.steps.use(self.model, self._step_model)
        return self.steps.run(rows)

    def prepare(self, progress: Progress | None = None) -> None:
        """As StepEngine.prepare: writes, compiles and loads kernels, and captures graphs. Raises what a step would raise, above
        all DeviceError when memory is full."""
        self.steps.use(self.model, self._step_model)
        self.paying_rows(self.slots)
        self.steps.prepare(likely_sizes(self.rows, self.slots, self.attention), progress)

    def graph_of(self, rows: Sequence[Row]) -> LaunchGraph:
        """What `step` replays for these rows, captured now unless that has been done. Errors as `step`."""
        self._check(rows)
        self.steps.use(self.model, self._step_model)
        return self.steps.graph_of(rows)

    def step_ahead(self) -> StepScores | None:
        """As StepEngine.step_ahead; None while launches are observed, or checked by the device. Raises ArgumentError where the
        last step is none that it could follow, or the model is another one by now, and as `step`."""
        if self.launcher.observers or self.device.sanitize:
            return None
        self.steps.use(self.model, self._step_model)
        self._check(self.steps.next_rows)
        return self.steps.run_next()

    def free(self) -> None:
        """Give back what the engine has taken beside the weights. A second time does nothing."""
        self.steps.drop()
        self.cache.free()
        if self._rope.alive:
            self._rope.free()

    def _step_model(self) -> StepModel:
        decoder = self.decoder
        return StepModel(decoder.model_graph(decoder.outliers()), self.cache.layers, self._rope, self.attention)

    def _check(self, rows: Sequence[Row]) -> None:
        if not 1 <= len(rows) <= self.rows:
            raise ArgumentError(f"a step has {len(rows)} rows; allowed: 1 to {self.rows}")
        begun: set[int] = set()  # slots of which the first row has come
        for number, row in enumerate(rows):
            whole(f"the slot of row {number}", row.slot, 0, self.slots - 1)
            token(f"the token of row {number}", row.token, self.vocab)
            whole(f"the position of row {number}", row.position, 0, self.context - 1)
            if not self.cache.has_pages(row.slot, row.position):
                raise ArgumentError(f"row {number}: slot {row.slot} has no page for position {row.position}")
            if row.slot not in begun and not self.cache.has_window(row.slot, row.position):
                raise ArgumentError(f"row {number}: slot {row.slot} has no pages for the window of position {row.position}")
            begun.add(row.slot)


def window_pages(windows: Sequence[int | None], shape: PagedShape, rows: int) -> int | None:
    """How many pages layers with these windows need in steps of so many rows: of each slot those of the window, one that is
    begun at either end and one of a step ahead, those of the rows, and as many windows that sequences have left. None where
    no layer has a window, or they would be as many as all."""
    widest = max((window for window in windows if window is not None), default=None)
    if widest is None:
        return None
    each, length = -(-widest // shape.page_len) + 3, shape.page_len
    needed = 2 * shape.slots * each + -(-rows // length)
    return needed if needed < shape.pages else None
