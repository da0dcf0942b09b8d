"""One sequence that decodes token by token: the position, the next token on the device, and the step that was started ahead for
it. The launches of a token are prepared in prepared_model.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import token as checked_token
from executor.base.arguments import whole
from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.device.protocol import Fetch
from executor.launch.launch import LayerOperation
from executor.launch.modules import Modules
from executor.layers.position import TokenPosition
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.paged_cache import as_pages
from executor.memory.weights import TensorFile, Weights
from executor.model.computed_tokens import ComputedTokens
from executor.model.config import ModelConfig
from executor.model.prepared_model import PreparedModel, Progress
from executor.model.prompt_chunks import LEAST_ROWS, chunks
from executor.model.row_steps import CHUNK, MOST_ROWS, RowSteps, StepScores
from executor.model.sampling import Sampler
from executor.model.scheduling.prompt_lookup import MAX_DRAFT
from executor.model.step import Row
from executor.model.step_launches import StepModel
from executor.model.token_draw import TokenDraw
from executor.model.token_plans import TokenPlans
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.paged_cache import TILE as PAGE_UNIT
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from ptxgen.kernels.token.sample_token import MOST_TOKENS


@dataclass
class _Ahead:
    """A step that was started for the likeliest token before anybody had read that. position: of the token; coming: its number,
    u32[1]; token: the same, once it was read; plans: what was launched; likeliest: as Decoder._likeliest, of the token that
    this step found, if it was launched wholly; memory: as Decoder._memory, then."""

    position: int
    coming: Fetch
    plans: TokenPlans
    likeliest: tuple[int, object, int, bool] | None = None
    memory: object = None
    token: int | None = None

    def read(self) -> int:
        """The token, as soon as it has come."""
        if self.token is None:
            self.token = int(self.coming.to_numpy()[0])
        return self.token


class Decoder(PreparedModel):
    """One sequence on one device: `step` runs a token, `logits` and `argmax` read what came out.

    Steps are replayed as one graph each; while the launcher has observers (the debug mode) they are launched one by one, with
    the same bits. When what they were captured from has changed, the next step prepares and captures anew by itself.
    """

    def __init__(
        self, file: TensorFile, config: ModelConfig, weights: Weights, cache: KvCache, modules: Modules, profile: GpuProfile
    ) -> None:
        super().__init__(file, config, weights, cache, modules, profile)
        self._chunk = CHUNK
        self._token = TokenPosition(self.workspace)
        self._likeliest: tuple[int, object, int, bool] | None = None
        """As `_choice`: the token that the last step with a head left on the device."""
        self._read: tuple[object, int] | None = None  # of which `_likeliest` the host has read which token
        self._draw: TokenDraw | None = None
        self._draws = False  # whether steps draw
        self._drawn = False  # whether the token on the device was drawn
        self._ahead: _Ahead | None = None
        """Whatever it is, it does not count; what the step before it left, the token and the logits, it has overwritten."""
        self._overwritten = False  # what the last step with a head left is lost: a step ahead of it was thrown away
        self._computed = ComputedTokens()
        self._written = weights.writes  # when it was last known that what is computed came from these weights
        self._activity = ""
        self._steps = RowSteps(self.launcher, modules)
        self._page = GpuBuffer.from_numpy(self.device, np.zeros((1, 1), np.uint32), name="page table")

    @contextmanager
    def busy(self, activity: str) -> Iterator[None]:
        """The sequence belongs to the block. ModelError within another such block: a callback would change the sequence under
        the outer call."""
        if self._activity:
            raise ModelError(f"the model is {self._activity}; {activity} must wait until that has ended")
        self._activity = activity
        try:
            yield
        finally:
            self._activity = ""

    @property
    def chunk(self) -> int:
        """The most tokens of a prompt that `feed` runs at a time, up to MOST_ROWS; more of them need more memory."""
        return self._chunk

    @chunk.setter
    def chunk(self, rows: int) -> None:
        self._chunk = whole("chunk", rows, 1, MOST_ROWS)

    @property
    def position(self) -> int:
        """How many tokens the sequence has."""
        return self.cache.length

    @property
    def context(self) -> int:
        """The most tokens a sequence can have."""
        return self.cache.max_len

    def reset(self) -> None:
        """Start a new sequence."""
        self.cache.reset()

    def rewind(self, tokens: Sequence[int]) -> int:
        """Start a new sequence that has the first of these tokens already: as many as the old one begins with, whose keys and
        values are there. Returns how many; the others are for `feed`. There are none if the profile, a weight or a flagged
        input has changed.

        The logits are then those of a sequence that was fed all of `tokens`; to the last bit if the profile is
        `batch_invariant`: only what ran as `feed` would run it counts, which the tokens of an answer did not."""
        if self._written != self.weights.writes:
            self._computed, self._written = ComputedTokens(), self.weights.writes
        by_rows = self._feeds_rows if self.profile.batch_invariant else None
        length = min(self._computed.common(tokens, self._computing, by_rows=by_rows), self.position)
        self.cache.truncate(length)
        return length

    def rest(self) -> None:
        """Give the memory of keys and values back, and what points there, until the next token runs: unless the sequence has
        tokens, when nothing happens. An engine does that to its decoder."""
        if self.position == 0:
            self._drop_plans()
            self._steps.drop()
            self.cache.rest()
            self._rope.free()

    def outliers(self) -> frozenset[LayerOperation]:
        """The operations whose output has an outlier, as far as the profile's kernels care: searched for now unless it has been
        done. A decoder that rests goes on resting."""
        if self._asked != (self.weights.generation, self.profile):
            rests = not self.cache.nbytes
            self.prepare()
            if rests:
                self.rest()
        return self.flagged

    def step(self, token: int | None = None, *, head: bool = True) -> None:
        """Run one more token: `token`, or the likeliest one after the last, whose step `run_ahead` may have started. Without
        `head` its logits are not computed. Raises ArgumentError for what is no token of the vocabulary, when the context is
        full, and where no step with a head has found the likeliest token. After an exception of any kind the sequence is as it
        was."""
        if token is not None:
            token = checked_token("the token", token, self.config.vocab)
        plans = self.prepare()
        position, chosen = self.position, plans.launches.token
        if token is None and self._likeliest is not None and self._likeliest[0] == position:
            self._find_likeliest()
        known = token
        if token is None and (ahead := self._ahead) is not None and ahead.position == position:
            known = token = ahead.read()
            found = ahead.likeliest == self._choice(position + 1, plans)
            if head and found and ahead.plans is plans and ahead.memory == self._memory and not self._watched:
                self._count(ahead)
                return
        elif token is None:
            if self._likeliest != self._choice(position, plans):
                raise ArgumentError(
                    f"no step with a head has computed the likeliest token for position {position}; give a token"
                )
            known = None if self._read is None or self._read[0] != self._likeliest else self._read[1]
        self._forget_ahead()
        self._computed.cut(position)
        self.cache.advance()
        try:
            self._token.move_to(position)
            if token is not None:
                chosen.upload(np.array([token], np.uint32))
            self._run(plans, position, head)
        except BaseException:  # an interrupt, a fault that a debugger found: the token does not count
            self.cache.truncate(position)
            self.workspace.settle()
            raise
        self._computed.put(position, [known], by_rows=False, model=self._computing)
        if position + 1 < self.cache.max_len:  # `advance` leaves no length beyond the room, which may grow
            self._token.moved_to(position + 1)
        self._likeliest = self._choice(position + 1, plans) if head else None
        self._overwritten = self._overwritten and not head

    def run_ahead(self) -> None:
        """Start the step of the likeliest token while its number is on its way to the host, so that the device need not wait
        until that was read. The step does not count until `step` is called without a token: `position` is what it was, `argmax`
        gives the token, and anything else that runs does so as if it had never been. `logits` has the last token run again, in
        the model of now, because they were overwritten; where other tokens ran, or the sequence was cut, since this step was
        thrown away, they are lost. Nor does it count when the memory that it read was written since then: it runs again.

        Nothing is started where no step with a head has found the likeliest token, after a draft, whose last token would not
        have the same bits if it ran again by itself, where the context is full, and where steps keep their plain order: while
        the launcher has observers, steps are profiled, or the device checks every access."""
        position, plans = self.position, self._plans
        if plans is None or self._plans_of != self._dependencies() or position >= self.context or self._ahead is not None:
            return
        chosen = plans.launches.token
        if self._likeliest != self._choice(position, plans) or self._computed.alone(position - 1) is None:
            return
        if self._watched:
            return
        self._computed.cut(position)
        self._token.move_to(position)
        self._ahead = ahead = _Ahead(position, self.device.fetch(chosen.pointer, np.empty(1, np.uint32)), plans)
        try:
            self._run(plans, position, head=True)
        except BaseException:
            self.workspace.settle()
            raise
        if position + 1 < self.cache.max_len:
            self._token.moved_to(position + 1)
        ahead.likeliest, ahead.memory = self._choice(position + 1, plans), self._memory

    def feed(self, tokens: Sequence[int], progress: Progress | None = None) -> None:
        """Run more tokens of which no logits are wanted, up to `chunk` of them at a time; `progress` is told how many of them
        have been started. One by one, as by `step` without a
        head, in three cases: a model of a bundle, which has no other kernels; a context that is no multiple of PAGE_UNIT, which
        no kernel of several queries takes; and while steps are profiled. Errors as `step`, of which those for tokens that are
        not of the vocabulary or do not fit come before anything has run. After any other exception the sequence ends with a
        token that has run."""
        tokens = [checked_token("the token", token, self.config.vocab) for token in tokens]
        self.cache.require_room(len(tokens))
        if not self._feeds_rows:
            for done, token in enumerate(tokens, 1):
                self.step(token, head=False)
                if progress is not None:
                    progress("prompt", done, len(tokens))
            return
        done = 0
        for chunk in chunks(tokens, self.chunk):
            self._run_rows(chunk, scored=False)
            self._likeliest = None
            done += len(chunk)
            if progress is not None:
                progress("prompt", done, len(tokens))

    def verify_draft(self, draft: Sequence[int]) -> list[int]:
        """Run tokens that may come next, up to MAX_DRAFT of them at once, and keep those that greedy decoding would have taken:
        the first ones that agree with it, which are returned. The sequence ends with them; `argmax` and `logits` are of the
        last of them, or as they were if there is none. Raises ArgumentError where no step with a head has found the likeliest
        token, for a draft that is empty, too long or does not fit, and for a context that is no multiple of PAGE_UNIT;
        ModelError for a model of a bundle. After an exception of any kind the sequence is as it was."""
        draft = [checked_token("the draft's token", token, self.config.vocab) for token in draft]
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
            likeliest += scores.greedy()
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

    def _run_rows(self, tokens: Sequence[int], *, scored: bool) -> StepScores:
        """Run tokens at once; the sequence has them afterwards, unless it fails."""
        flagged = self.outliers()
        self._steps.use(
            self._dependencies(),
            lambda: StepModel(
                self.config,
                self.weights,
                as_pages(self.cache, self._page),
                self._rope.buffer,
                self.profile,
                self.attention,
                flagged,
                self.persistent,
            ),
        )
        self._forget_ahead()
        self._computed.cut(self.position)
        position = self.cache.advance(len(tokens))
        try:
            rows = [Row(0, token, at, scored) for at, token in enumerate(tokens, position)]
            scores = self._steps.run(rows, LEAST_ROWS)
        except BaseException:
            self.cache.truncate(position)
            raise
        self._computed.put(position, tokens, by_rows=True, model=self._computing)
        return scores

    @property
    def _feeds_rows(self) -> bool:
        """Whether `feed` runs many tokens at a time."""
        return self.modules.bundle is None and self.context % PAGE_UNIT == 0 and self.profiler is None

    @property
    def _memory(self) -> object:
        """How often what a step reads from other steps was written: weights, keys and values."""
        return self.weights.writes, self.cache.writes

    @property
    def _computing(self) -> object:
        """What keys and values depend on, beside the tokens and the numbers of the weights."""
        return self.weights.generation, self.profile, self.flagged

    @property
    def captures(self) -> int:
        """How many graphs were captured so far."""
        return super().captures + self._steps.captures

    def logits(self) -> NDArray[np.float32]:
        """f32[vocab], of the last token that ran with its head. That is run again where a step ahead of it was started that
        does not count; an exception meanwhile leaves the sequence without it. ModelError where it cannot be run again: other
        tokens have run since then, or the sequence was cut."""
        self._restore()
        return (self._plans or self.prepare()).launches.logits.to_numpy()

    def hidden(self) -> NDArray[np.float32]:
        """f32[hidden]: the residual stream behind the last layer, of the token that `step` has just run."""
        return (self._plans or self.prepare()).launches.hidden.to_numpy()

    def argmax(self) -> int:
        """The likeliest token after the last one that ran with its head, found on the device. ModelError as for `logits`, if it
        is not on its way to the host. In a block of `drawing` it is looked for in `logits`."""
        if self._draws:
            logits = self.logits()
            return NOT_A_NUMBER if np.isnan(logits).any() else int(np.argmax(logits))
        self._find_likeliest()
        return self.chosen()

    def chosen(self) -> int:
        """The token that the last step with a head left on the device: the likeliest, or in a block of `drawing` the one that
        was drawn. Errors as `argmax`."""
        if self._ahead is not None:
            return self._ahead.read()
        self._restore()
        token = int((self._plans or self.prepare()).launches.token.to_numpy()[0])
        self._read = self._likeliest, token
        return token

    @property
    def can_draw(self) -> bool:
        """Whether there is a kernel for `drawing`: a bundle has none, and no vocabulary of a model is too large for it."""
        return self.modules.bundle is None and self.config.vocab <= MOST_TOKENS

    @contextmanager
    def drawing(self, sampler: Sampler) -> Iterator[None]:
        """In the block, steps with a head draw the token after them on the device, as the sampler would: `step` without a
        token and `run_ahead` go on with that one, and `chosen` is it. The sampler's next draw is that of the next step, and
        each step after it has the next number; whoever takes a token counts `draws`."""
        if self._draw is None:
            self._draw = TokenDraw(self.device)
        self._draw.use(sampler, self.position)
        self._draws = True
        try:
            yield
        finally:
            self._draws = False

    @contextmanager
    def beside(self, profile: GpuProfile) -> Iterator[Decoder]:
        """In the block, another decoder of the same weights and the same memory of keys and values, with kernels, workspace and
        graphs of its own. Its steps change the sequence behind this one's back: put that aside first (KvCache.set_aside)."""
        other = Decoder(self.file, self.config, self.weights, self.cache, self.modules, profile)
        other.calibration = self.calibration
        other.flagged, other._searched = self.flagged, self._searched
        try:
            yield other
        finally:
            if not self.device.closed:
                other._free_own()

    def free(self) -> None:
        """Give the memory of weights, cache and workspace back. A second time does nothing."""
        self._free_own()
        self.cache.free()
        self.weights.free()

    def _choice(self, position: int, plans: TokenPlans) -> tuple[int, object, int, bool]:
        """The token for this position that is on the device now: equal while it is the same."""
        chosen = plans.launches.token
        return position, chosen.allocation.writes, chosen.version, self._drawn

    def _find_likeliest(self) -> None:
        """Outside of `drawing`, have the likeliest token on the device where a drawn one is."""
        if self._draws or not self._drawn:
            return
        if self._ahead is not None or self._overwritten:
            self._restore()  # its step finds it
            return
        plans = self._plans or self.prepare()
        plans.argmax()
        self._drawn = False
        self._likeliest = self._choice(self._likeliest[0], plans) if self._likeliest is not None else None

    def _run(self, plans: TokenPlans, position: int, head: bool) -> None:
        draw = self._draw if self._draws and head else None
        if draw is None:
            self._launch(plans, position, head, draw=False)
        else:
            plans.draw_by(draw.call(plans.launches))
            draw.move_to(position)
            self._launch(plans, position, head, draw=True)
            draw.moved_to(position + 1)
        self._drawn = draw is not None

    def _count(self, ahead: _Ahead) -> None:
        """The step was the next one."""
        self.cache.advance()
        self._computed.put(ahead.position, [ahead.token], by_rows=False, model=self._computing)
        self._likeliest, self._ahead = ahead.likeliest, None

    def _forget_ahead(self) -> None:
        """Something else runs."""
        if self._ahead is not None:
            self._ahead, self._overwritten = None, True

    def _restore(self) -> None:
        """Have the last token's logits and the likeliest token after it on the device, whatever ran ahead of it."""
        if self._ahead is None and not self._overwritten:
            return
        position = self.position
        token = self._computed.alone(position - 1)
        if self._ahead is None or self._ahead.position != position or token is None:
            raise ModelError("the logits were overwritten by a step that does not count; read them before other tokens run")
        self.cache.truncate(position - 1)
        self.step(token)

    def _free_own(self) -> None:
        """Give back what this decoder alone uses."""
        self._steps.drop()
        if self._page.alive:
            self._page.free()
        if self._draw is not None:
            self._draw.free()
            self._draw = None
        super()._free_own()
