"""One sequence that decodes token by token: the position, the next token on the device, and the step that was started ahead for
it. The launches of a token are prepared in prepared_model.py; several tokens at once are decoder.py's business."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import token as checked_token
from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.launch.launch import LayerOperation
from executor.launch.modules import Modules
from executor.layers.position import TokenPosition
from executor.memory.kv_cache import KvCache
from executor.memory.weights import TensorFile, Weights
from executor.memory.workspace import Workspace
from executor.model.computed_tokens import ComputedTokens
from executor.model.prepared_model import PreparedModel
from executor.model.sampling import Sampler
from executor.model.spec import ModelSpec
from executor.model.step import Allowed, Draw
from executor.model.step_ahead import StepAhead
from executor.model.token_draw import TokenDraw
from executor.model.token_plans import TokenPlans
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from ptxgen.kernels.token.sample_token import MOST_TOKENS


class TokenDecoder(PreparedModel):
    """One sequence on one device: `step` runs a token, `logits` and `argmax` read what came out.

    Steps are replayed as one graph each; while the launcher has observers (the debug mode) they are launched one by one, with
    the same bits. When what they were captured from has changed, the next step prepares and captures anew by itself.
    """

    def __init__(
        self, file: TensorFile, spec: ModelSpec, weights: Weights, cache: KvCache, modules: Modules, profile: GpuProfile
    ) -> None:
        super().__init__(file, spec, weights, cache, modules, profile)
        self._token = TokenPosition(self.workspace)
        self._likeliest: tuple[int, object, int, bool] | None = None
        """As `_choice`: the token that the last step with a head left on the device."""
        self._read: tuple[object, int] | None = None  # of which `_likeliest` the host has read which token
        self._draw: TokenDraw | None = None
        self._draws = False  # whether steps draw
        self._chooses = False  # whether tokens are chosen otherwise than by argmax, by steps or after them
        self._chosen = False  # whether the token on the device was
        self._of_choices = Workspace(self.device)
        self._ahead: StepAhead | None = None
        """Whatever it is, it does not count; what the step before it left, the token and the logits, it has overwritten."""
        self._overwritten = False  # what the last step with a head left is lost: a step ahead of it was thrown away
        self._computed = ComputedTokens()
        self._activity = ""

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

    def rest(self) -> None:
        """Give the memory of keys and values back, and what points there, until the next token runs: unless the sequence has
        tokens, when nothing happens. An engine does that to its decoder."""
        if self.position == 0:
            self._drop_plans()
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
            token = checked_token("the token", token, self.spec.vocab)
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
        coming = self.device.fetch(chosen.pointer, np.empty(1, np.uint32))
        self._ahead = ahead = StepAhead(position, coming, plans, self._chosen)
        try:
            self._run(plans, position, head=True)
        except BaseException:
            self.workspace.settle()
            raise
        if position + 1 < self.cache.max_len:
            self._token.moved_to(position + 1)
        ahead.likeliest, ahead.memory = self._choice(position + 1, plans), self._memory

    @property
    def _memory(self) -> object:
        """How often what a step reads from other steps was written: weights, keys and values."""
        return self.weights.writes, self.cache.writes

    @property
    def _computing(self) -> object:
        """What keys and values depend on, beside the tokens and the numbers of the weights."""
        return self.weights.generation, self.profile, self.flagged

    def logits(self) -> NDArray[np.float32]:
        """f32[vocab], of the last token that ran with its head. That is run again where a step ahead of it was started that
        does not count; an exception meanwhile leaves the sequence without it. ModelError where it cannot be run again: other
        tokens have run since then, or the sequence was cut."""
        self._restore()
        return (self._plans or self.prepare()).launches.logits.to_numpy()

    def hidden(self) -> NDArray[np.float32]:
        """f32[hidden]: the residual stream behind the last layer, of the token that `step` has just run."""
        plans = self._plans or self.prepare()
        plans.complete_stream()
        return plans.launches.hidden.to_numpy()

    def argmax(self) -> int:
        """The likeliest token after the last one that ran with its head, found on the device. ModelError as for `logits`, if it
        is not on its way to the host. In a block of `drawing` or `choosing` it is looked for in `logits`."""
        if self._chooses:
            logits = self.logits()
            return NOT_A_NUMBER if np.isnan(logits).any() else int(np.argmax(logits))
        self._find_likeliest()
        return self.chosen()

    def chosen(self) -> int:
        """The token that the last step with a head left on the device: the likeliest, or in a block of `drawing` or `choosing`
        the one that was drawn or chosen. Errors as `argmax`."""
        if self._ahead is not None:
            return self._ahead.read()
        self._restore()
        token = int((self._plans or self.prepare()).launches.token.to_numpy()[0])
        self._read = self._likeliest, token
        return token

    @property
    def can_draw(self) -> bool:
        """Whether there are kernels for `drawing` and `choose`: a bundle has none, and no vocabulary of a model is too large
        for them."""
        return self.modules.bundle is None and self.spec.vocab <= MOST_TOKENS

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
            with self.choosing():
                yield
        finally:
            self._draws = False

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """In the block, `choose` may be called after a step with a head: `step` without a token and `run_ahead` go on with the
        token that it chose, and `chosen` is it."""
        self._chooses = True
        try:
            yield
        finally:
            self._chooses = False

    def choose(self, allowed: Allowed, draw: Draw | None) -> None:
        """In a block of `choosing`: have the token after the last one chosen among those that are allowed, on the device; the
        likeliest, or drawn. ArgumentError where no step with a head has run just now, or one was started ahead of it."""
        position, plans = self.position, self.prepare()
        if self._ahead is not None or self._likeliest != self._choice(position, plans):
            raise ArgumentError(f"no step with a head has just left logits for position {position}; run one first")
        plans.choices(self._of_choices).draw({} if draw is None else {0: draw}, {0: allowed})
        self._chosen = True
        self._likeliest = self._choice(position, plans)

    @contextmanager
    def beside(self, profile: GpuProfile) -> Iterator[Self]:
        """In the block, another decoder of the same weights and the same memory of keys and values, with kernels, workspace and
        graphs of its own. Its steps change the sequence behind this one's back: put that aside first (KvCache.set_aside)."""
        other = type(self)(self.file, self.spec, self.weights, self.cache, self.modules, profile)
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
        return position, chosen.allocation.writes, chosen.version, self._chosen

    def _find_likeliest(self) -> None:
        """Outside of `drawing` and `choosing`, have the likeliest token on the device where another one is."""
        if self._chooses or not (self._chosen or (self._ahead is not None and self._ahead.otherwise)):
            return
        if self._ahead is not None or self._overwritten:
            self._restore()  # its step finds it
            return
        plans = self._plans or self.prepare()
        plans.argmax()
        self._chosen = False
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
        self._chosen = draw is not None

    def _count(self, ahead: StepAhead) -> None:
        """The step was the next one."""
        self.cache.advance()
        self._computed.put(ahead.position, [ahead.token], by_rows=False, model=self._computing)
        self._likeliest, self._ahead = ahead.likeliest, None

    def _forget_ahead(self) -> None:
        """Something else runs."""
        if self._ahead is not None:
            self._ahead, self._overwritten = None, True

    def _restore(self) -> None:
        """Have the last token's logits and the token after it on the device, whatever ran ahead of it: the likeliest, unless
        this is in a block where another one was chosen."""
        if self._ahead is None and not self._overwritten:
            return
        position = self.position
        token = self._computed.alone(position - 1)
        ahead = self._ahead
        if ahead is None or ahead.position != position or token is None:
            raise ModelError("the logits were overwritten by a step that does not count; read them before other tokens run")
        self.cache.truncate(position - 1)
        self.step(token)
        if self._chooses and ahead.otherwise:
            plans = self.prepare()
            plans.launches.token.upload(np.array([ahead.read()], np.uint32))
            self._chosen = True
            self._likeliest = self._choice(position, plans)
            self._read = self._likeliest, ahead.read()

    def _free_own(self) -> None:
        """Give back what this decoder alone uses."""
        if self._draw is not None:
            self._draw.free()
            self._draw = None
        self._of_choices.free()
        super()._free_own()
