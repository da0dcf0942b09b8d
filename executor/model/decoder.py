"""One sequence that runs several tokens at once: prompts in chunks, drafts that are verified, what an earlier sequence has
computed already. A token alone is token_decoder.py's business."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from executor.base.arguments import token as checked_token
from executor.base.arguments import whole
from executor.base.errors import ModelError
from executor.base.progress import Progress
from executor.choice.choice import GpuProfile
from executor.launch.graph import LaunchGraph
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.paged_cache import as_pages
from executor.memory.weights import TensorFile, Weights
from executor.model.computed_tokens import ComputedTokens
from executor.model.prompt_chunks import LEAST_ROWS, chunks
from executor.model.row_steps import CHUNK, MOST_ROWS, RowSteps, StepScores
from executor.model.scheduling.prompt_lookup import MAX_DRAFT
from executor.model.spec import ModelSpec
from executor.model.step import Row
from executor.model.step_launches import StepModel
from executor.model.token_decoder import TokenDecoder
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.paged_cache import TILE as PAGE_UNIT


class Decoder(TokenDecoder):
    """One sequence on one device: `feed` runs a prompt, `step` a token, `verify_draft` tokens that were guessed; `logits` and
    `argmax` read what came out."""

    def __init__(
        self, file: TensorFile, spec: ModelSpec, weights: Weights, cache: KvCache, modules: Modules, profile: GpuProfile
    ) -> None:
        super().__init__(file, spec, weights, cache, modules, profile)
        self._chunk = CHUNK
        self._written = weights.writes  # when it was last known that what is computed came from these weights
        self._steps = RowSteps(self.launcher, modules)
        self._page = self._pages()

    @property
    def chunk(self) -> int:
        """The most tokens of a prompt that `feed` runs at a time, up to MOST_ROWS and KvCache.step; more of them need more
        memory."""
        return min(self._chunk, self.cache.step)

    @chunk.setter
    def chunk(self, rows: int) -> None:
        self._chunk = whole("chunk", rows, 1, MOST_ROWS)

    def rewind(self, tokens: Sequence[int]) -> int:
        """Start a new sequence that has the first of these tokens already: as many as the old one begins with, whose keys and
        values are there. Returns how many; the others are for `feed`. There are none if the profile, a weight or a flagged
        input has changed, or where a layer with a window has kept too few (KvCache.kept).

        The logits are then those of a sequence that was fed all of `tokens`; to the last bit if the profile is
        `batch_invariant`: only what ran as `feed` would run it counts, which the tokens of an answer did not."""
        if self._written != self.weights.writes:
            self._computed, self._written = ComputedTokens(), self.weights.writes
        by_rows = self._feeds_rows if self.profile.allows("batch_invariant") else None
        length = self.cache.kept(min(self._computed.common(tokens, self._computing, by_rows=by_rows), self.position))
        self.cache.truncate(length)
        return length

    def rest(self) -> None:
        """As TokenDecoder.rest, what several tokens run by included."""
        if self.position == 0:
            self._steps.drop()
        super().rest()

    def feed(self, tokens: Sequence[int], progress: Progress | None = None) -> None:
        """Run more tokens of which no logits are wanted, up to `chunk` of them at a time; `progress` is told how many of them
        have been started. One by one, as by `step` without a head, in three cases: a model of a bundle, which has no other
        kernels; a context that is no multiple of PAGE_UNIT, which no kernel of several queries takes; and while steps are
        profiled. Errors as `step`, of which those for tokens that are not of the vocabulary or do not fit come before anything
        has run. After any other exception the sequence ends with a token that has run."""
        tokens = [checked_token("the token", token, self.spec.vocab) for token in tokens]
        self.cache.require_room(len(tokens))
        many = self._feeds_rows
        done = 0
        for chunk in chunks(tokens, self.chunk) if many else ([token] for token in tokens):
            if many:
                self._run_rows(chunk, scored=False)
                self._likeliest = None
            else:
                self.step(chunk[0], head=False)
            done += len(chunk)
            if progress is not None:
                progress("prompt", done, len(tokens))

    def verify_draft(self, draft: Sequence[int]) -> list[int]:
        """Run tokens that may come next, up to MAX_DRAFT of them at once, and keep those that greedy decoding would have taken:
        the first ones that agree with it, which are returned. The sequence ends with them; `argmax` and `logits` are of the
        last of them, or as they were if there is none. Raises ArgumentError where no step with a head has found the likeliest
        token, for a draft that is empty, too long or does not fit, and for a context that is no multiple of PAGE_UNIT;
        ModelError for a model of a bundle. After an exception of any kind the sequence is as it was."""
        draft = [checked_token("the draft's token", token, self.spec.vocab) for token in draft]
        whole("the length of the draft", len(draft), 1, MAX_DRAFT)
        if self.modules.bundle is not None:
            raise ModelError("a bundle has the kernels of one token; load the model without it to verify drafts")
        if self.context % PAGE_UNIT:
            raise ArgumentError(f"drafts need a context that is a multiple of {PAGE_UNIT}, got {self.context}")
        if self._ahead is not None and self._ahead.position == self.position:
            self._restore()
        self._find_likeliest()
        plans, position = self.prepare(), self.position
        launches = plans.launches
        if self._likeliest != self._choice(position, plans):
            raise ArgumentError(f"no step with a head has computed the likeliest token for position {position}; run one first")
        likeliest = [self.argmax()]
        scores = self._run_rows(draft, scored=True)
        try:
            likeliest += scores.chosen()
            taken = next(at for at, token in enumerate(likeliest) if at == len(draft) or token != draft[at])
            self.cache.truncate(position + taken)
            if taken:
                launches.logits.upload(scores.logits(taken - 1))
                launches.token.upload(np.array([likeliest[taken]], np.uint32))
        except BaseException:
            self.cache.truncate(position)
            raise
        self._likeliest = self._choice(position + taken, plans)
        return draft[:taken]

    @property
    def captures(self) -> int:
        """How many graphs were captured so far."""
        return super().captures + self._steps.captures

    def prompt_graph(self, tokens: int) -> LaunchGraph:
        """The first that `feed` replays for a new sequence of so many tokens, captured now unless that has been done.
        ArgumentError for more than the context."""
        whole("tokens", tokens, 1, self.context)
        if not self._feeds_rows:
            return self.graph(head=False)
        first = next(chunks([0] * tokens, self.chunk))
        return self._row_steps().graph_of([Row(0, 0, at, scored=False) for at in range(len(first))], LEAST_ROWS)

    def _row_steps(self) -> RowSteps:
        """Steps of several tokens, of the model as it is now."""
        flagged = self.outliers()

        def model() -> StepModel:
            if self._page.shape[1] < self.cache.pages:  # the cache has grown
                self._page.free()
                self._page = self._pages()
            return StepModel(self.model_graph(flagged), as_pages(self.cache, self._page), self._rope.buffer, self.attention)

        self._steps.use(self._dependencies(), model)
        return self._steps

    def _pages(self) -> GpuBuffer:
        """The page table of a sequence whose pages are all the same."""
        return GpuBuffer.from_numpy(self.device, np.zeros((1, self.cache.pages), np.uint32), name="page table")

    def _run_rows(self, tokens: Sequence[int], *, scored: bool) -> StepScores:
        """Run tokens at once; the sequence has them afterwards, unless it fails."""
        steps = self._row_steps()
        self._forget_ahead()
        self._computed.cut(self.position)
        position = self.cache.advance(len(tokens))
        try:
            rows = [Row(0, token, at, scored) for at, token in enumerate(tokens, position)]
            scores = steps.run(rows, LEAST_ROWS)
        except BaseException:
            self.cache.truncate(position)
            raise
        self._computed.put(position, tokens, by_rows=True, model=self._computing)
        return scores

    @property
    def _feeds_rows(self) -> bool:
        """Whether `feed` runs many tokens at a time."""
        return self.modules.bundle is None and self.context % PAGE_UNIT == 0 and self.profiler is None

    def _free_own(self) -> None:
        self._steps.drop()
        if self._page.alive:
            self._page.free()
        super()._free_own()
