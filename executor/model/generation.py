"""A loaded model that decodes: tokens in, logits or tokens out. One token a step, which is chosen on the device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described, instance, tokens, whole
from executor.base.errors import ModelError, OutOfMemory
from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.gguf.gguf_file import GgufFile
from executor.launch.modules import Modules
from executor.memory.buffers import free_on_error
from executor.model.config import ModelConfig, check_tensors
from executor.model.decoder import Decoder
from executor.model.engine import Engine
from executor.model.memory_needed import memory_needed
from executor.model.prepared_model import Progress
from executor.model.sampling import Sampler
from executor.model.scheduling.scheduler import Scheduler
from executor.model.scheduling.verify import Drafter
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError
from ptxgen.kernels.token.argmax import NOT_A_NUMBER

DEFAULT_CONTEXT = 4096  # tokens; a model's own limit may be 131072, whose f32 cache would be too large a default

SLOTS = 8
"""Sequences of a scheduler, unless told otherwise."""

CALIBRATION_TOKENS = 7
"""Spread over the vocabulary."""

_log = logging.getLogger(__name__)


@dataclass
class Generation:
    """What a call of `generate` made, and how long it took."""

    tokens: list[int] = field(default_factory=list)
    stopped: Literal["eos", "length", "context"] = "length"
    prompt_tokens: int = 0
    prompt_seconds: float = 0.0  # until the first token was there
    decode_seconds: float = 0.0  # for the tokens after the first
    cached_prompt_tokens: int = 0  # of the prompt, not computed: the sequence before began with them, too

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed after the first token; 0 if there was no second one."""
        return (len(self.tokens) - 1) / self.decode_seconds if len(self.tokens) > 1 else 0.0


class LanguageModel:
    """A GGUF model on a device, until it is closed. It belongs to the thread of its device; one sequence at a time.

    An exception during `generate` or `logits`, Ctrl-C included, leaves a model that works: of what was computed, the next call
    finds what had ended.
    """

    def __init__(
        self, config: ModelConfig, tokenizer: Tokenizer, decoder: Decoder, modules: Modules, *, owns_modules: bool = False
    ) -> None:
        self.closed = False
        self._owns_modules = owns_modules
        self.config = config
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.modules = modules
        self._engines: WeakSet[Engine] = WeakSet()  # one that nobody holds any more gives its memory back by itself

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: Device,
        *,
        context: int | None = None,
        progress: Progress | None = None,
        modules: Modules | None = None,
        profile: GpuProfile | None = None,
    ) -> LanguageModel:
        """Read, check and upload a model, and load every kernel it needs.

        context: most tokens of a sequence (default: what the kernels of a bundle were written for, else the model's own limit,
        at most 4096). modules: where the kernels come from (default: written and compiled as needed). profile: which kernels
        are used (default: the environment's, and what was measured on this GPU). Raises ModelError for a file that is not a
        good model, ArgumentError for a context out of range or a profile that does not fit, BundleError for a bundle that was
        not written for this model and context, OutOfMemory if the device cannot hold it: it says what needs how much. If
        anything goes wrong, Ctrl-C included, the device keeps nothing of the model."""
        file = GgufFile.open(path)
        config = ModelConfig.from_gguf(file)
        check_tensors(file, config)
        tokenizer = Tokenizer.from_gguf(file)
        own_modules = modules is None
        modules = Modules(device) if modules is None else modules
        if context is None and modules.bundle is not None:
            context = modules.bundle.context
        context = chosen_context(config, context)
        profile = profile or GpuProfile.for_modules(modules)
        free = device.memory().free
        try:
            with free_on_error(device):
                decoder = Decoder.build(file, config, modules, context, progress, profile, calibration_tokens(tokenizer))
        except BaseException as error:
            if own_modules:
                modules.close()
            if not isinstance(error, OutOfMemory):
                raise
            needed = memory_needed(file, config, context, device.target, profile)
            message = f"{path}: {device.name} has no room for the model, which needs {needed}; {free} bytes were free ({error})"
            raise OutOfMemory(message, needed.total, free) from error
        return cls(config, tokenizer, decoder, modules, owns_modules=own_modules)

    def close(self) -> None:
        """Give all its memory on the device back, which lives on. A second time, or after the device, does nothing. Kernels of
        a `modules` that others gave stay loaded there. ModelError in the middle of a call of the model (in `on_token`)."""
        if self.closed:
            return
        if self.device.closed:
            self.closed = True
            return
        with self.decoder.busy("closing"):
            for engine in list(self._engines):
                engine.free()
            self.decoder.free()
        self.closed = True
        if self._owns_modules:
            self.modules.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def device(self) -> Device:
        """The device that runs it."""
        return self.decoder.device

    @property
    def context(self) -> int:
        """The most tokens a sequence can have."""
        return self.decoder.context

    def engine(self, *, slots: int, **options: Any) -> Engine:
        """Runs steps of many rows of up to `slots` sequences with the weights of this model; options and errors as Engine's. It
        ends with the model, by its own `free`, or when nobody holds it any more."""
        if self.closed:
            raise ModelError("the model is closed; load it again")
        engine = Engine(self.decoder, slots=slots, **options)
        self._engines.add(engine)
        return engine

    def scheduler(
        self,
        *,
        slots: int = SLOTS,
        prompt_rows: int | None = None,
        draft: Callable[[], Drafter] | None = None,
        **options: Any,
    ) -> Scheduler:
        """Runs up to `slots` sequences at a time, which come and go; options and errors as those of Engine and Scheduler. Its
        engine ends with it or with the model."""
        engine = self.engine(slots=slots, **options)
        return Scheduler(engine, self.tokenizer, prompt_rows=prompt_rows, draft=draft, owner=self.device.owner)

    def logits(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """f32[len(tokens), vocab]: the logits after each token. Starts a new sequence."""
        prompt = self._prompt(tokens)
        rows = np.empty((len(prompt), self.config.vocab), np.float32)
        with self.decoder.busy("computing logits"):
            self.decoder.reset()
            for row, token in zip(rows, prompt, strict=True):
                self.decoder.step(token)
                row[:] = self.decoder.logits()
        return rows

    def forget(self) -> None:
        """The next call of `generate` computes its whole prompt, whatever was computed before. ModelError in an `on_token`."""
        if self.closed:
            raise ModelError("the model is closed; load it again")
        with self.decoder.busy("forgetting"):
            self.decoder.reset()

    def generate(
        self,
        prompt: Sequence[int] | NDArray[np.integer[Any]],
        *,
        max_tokens: int,
        sampler: Sampler,
        stop: Collection[int] | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:
        """Continue the prompt by at most `max_tokens` tokens; a token of `stop` ends it and is not part of the result (default:
        the vocabulary's ends of text, turn and message, `tokenizer.eos_ids`; nothing ends it with `stop=()`). `on_token` sees
        each token as soon as it is known; the model is busy meanwhile. ModelError if the logits hold NaN, and in an `on_token`
        of the same model.

        Leading tokens that the sequence before had too, in its prompt or its answer, are not computed again: a conversation
        costs its new tokens, and `cached_prompt_tokens` says how many others there were. A step is started before the token
        before it was read (`Decoder.run_ahead`), be that the likeliest or drawn (`Decoder.drawing`); where it ends the answer,
        the step does not count. With a bundle, which has no kernel that draws, the host draws the same tokens. The answer is
        that of a new sequence; its logits are to the last bit if the profile is `batch_invariant` (the tokens of an answer are
        computed again then)."""
        ids = self._prompt(prompt)
        most = whole("max_tokens", max_tokens, 1)
        ends = self.tokenizer.eos_ids if stop is None else frozenset(tokens("stop", stop, self.config.vocab))
        instance("sampler", sampler, Sampler)
        if on_token is not None and not callable(on_token):
            raise ArgumentError(f"on_token is {described(on_token)}; allowed: a function of a token id")
        generation = Generation(prompt_tokens=len(ids))
        with self.decoder.busy("generating"):
            self._continue(generation, ids, most, sampler, ends, on_token)
        _log.debug("%d tokens in %.3f s", len(generation.tokens), generation.prompt_seconds + generation.decode_seconds)
        return generation

    def _continue(
        self,
        generation: Generation,
        prompt: Sequence[int],
        most: int,
        sampler: Sampler,
        ends: Collection[int],
        on_token: Callable[[int], None] | None,
    ) -> None:
        *before, token = prompt
        start = time.perf_counter()
        generation.cached_prompt_tokens = self.decoder.rewind(before)
        self.decoder.feed(before[generation.cached_prompt_tokens :])
        draws = not sampler.is_greedy and self.decoder.can_draw
        with self.decoder.drawing(sampler) if draws else nullcontext():
            self._decode(generation, token, most, sampler, ends, on_token, start)

    def _decode(
        self,
        generation: Generation,
        token: int,
        most: int,
        sampler: Sampler,
        ends: Collection[int],
        on_token: Callable[[int], None] | None,
        start: float,
    ) -> None:
        chooses = sampler.is_greedy or self.decoder.can_draw
        while True:
            # The chosen token is on the device already: no copy, and the step after it need not wait until it was read.
            self.decoder.step(None if chooses and generation.tokens else token)
            if chooses and len(generation.tokens) + 1 < most:
                self.decoder.run_ahead()
            token = self._chosen(sampler) if chooses else sampler.sample(self.decoder.logits())
            now = time.perf_counter()
            if not generation.tokens:
                generation.prompt_seconds = now - start
            generation.decode_seconds = now - start - generation.prompt_seconds
            if token in ends:
                generation.stopped = "eos"
                break
            generation.tokens.append(token)
            if on_token is not None:
                on_token(token)
            if len(generation.tokens) == most:
                generation.stopped = "length"
                break
            if self.decoder.position == self.context:
                generation.stopped = "context"
                break

    def _chosen(self, sampler: Sampler) -> int:
        """The token that the step chose: the likeliest, or the sampler's next draw."""
        token = self.decoder.chosen()
        if not sampler.is_greedy:
            if token == NOT_A_NUMBER:
                return sampler.sample(self.decoder.logits())  # says what is wrong with them
            sampler.draws += 1
        elif token == NOT_A_NUMBER:
            raise ModelError("the logits hold NaN, so no token is the likeliest; the weights are damaged or overflow f32")
        return token

    def _prompt(self, token_ids: object) -> list[int]:
        if self.closed:
            raise ModelError("the model is closed; load it again")
        prompt = tokens("the prompt", token_ids, self.config.vocab)
        if not prompt:
            raise ArgumentError("the prompt has no tokens; give at least one")
        if len(prompt) > self.context:
            raise ArgumentError(f"the prompt has {len(prompt)} tokens, the context holds {self.context}")
        return prompt


def calibration_tokens(tokenizer: Tokenizer) -> list[int]:
    """The tokens that are run to find massive activations: what a sequence starts with, where they are largest, and some from
    all over the vocabulary."""
    size = tokenizer.vocab_size
    spread = [size * (2 * i + 1) // (2 * CALIBRATION_TOKENS) for i in range(CALIBRATION_TOKENS)]
    return ([] if tokenizer.bos_id is None else [tokenizer.bos_id]) + spread


def chosen_context(config: ModelConfig, asked: int | None) -> int:
    """How many tokens a sequence gets room for. ArgumentError if that is more than the model can take."""
    if asked is None:
        return min(config.context_length, DEFAULT_CONTEXT)
    if whole("context", asked) not in range(1, config.context_length + 1):
        raise ArgumentError(f"context must be 1 to {config.context_length} (the model's limit), got {described(asked)}")
    return whole("context", asked)
