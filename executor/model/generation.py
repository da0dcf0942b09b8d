"""A loaded model that decodes: tokens in, logits or tokens out. One token a step, which is chosen on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described, instance, one_of, tokens, whole
from executor.base.errors import ModelError, OutOfMemory
from executor.base.progress import Progress
from executor.choice.choice import GpuProfile
from executor.device.protocol import Device
from executor.gguf.gguf_file import GgufFile
from executor.launch.modules import Modules
from executor.memory.buffers import free_on_error
from executor.model.answer import AnswerStream, Generation
from executor.model.answering import AnswerRequest, answer_pieces
from executor.model.context import chosen_context, longest_that_fits
from executor.model.decoder import Decoder
from executor.model.embedding import POOLINGS, Pooling, embedding, last_norm, pooling_of
from executor.model.engine import Engine
from executor.model.kernel_limits import named_by_key, runnable_spec
from executor.model.logprobs import log_softmax
from executor.model.memory_needed import MemoryNeeded, memory_needed
from executor.model.ranking import prompt_of, require_head, scores
from executor.model.sampling import Sampler
from executor.model.scheduling.answer_text import StopStrings
from executor.model.scheduling.scheduler import Scheduler
from executor.model.scheduling.verify import Drafter
from executor.model.spec import ModelSpec
from executor.text.chat import chat_ids, conversation
from executor.text.grammar import Grammar
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

SLOTS = 8
"""Sequences of a scheduler, unless told otherwise."""

CALIBRATION_TOKENS = 7
"""Spread over the vocabulary."""

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]

_log = logging.getLogger(__name__)


class LanguageModel:
    """A GGUF model on a device, until it is closed. It belongs to the thread of its device; one sequence at a time.

    An exception during `generate` or `logits`, Ctrl-C included, leaves a model that works: of what was computed, the next call
    finds what had ended.
    """

    def __init__(
        self, spec: ModelSpec, tokenizer: Tokenizer, decoder: Decoder, modules: Modules, *, owns_modules: bool = False
    ) -> None:
        self.closed = False
        self._owns_modules = owns_modules
        self.spec = spec
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.modules = modules
        self._engines: WeakSet[Engine] = WeakSet()  # one that nobody holds any more gives its memory back by itself
        self._closers: list[Callable[[], None]] = []

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
        good model, ArgumentError for a context out of range, a profile that does not fit or devices that cannot share it
        equally, BundleError for a bundle that was
        not written for this model and context, OutOfMemory if the device cannot hold it: it says what needs how much. If
        anything goes wrong, Ctrl-C included, the device keeps nothing of the model."""
        file = GgufFile.open(path)
        spec = runnable_spec(file)
        tokenizer = Tokenizer.from_gguf(file)
        own_modules = modules is None
        modules = Modules(device) if modules is None else modules
        if context is None and modules.bundle is not None:
            context = modules.bundle.context
        context = chosen_context(spec, context)
        profile = profile or GpuProfile.for_modules(modules)
        free = device.memory().free
        try:
            with free_on_error(device), named_by_key(spec, file.metadata, file.path):
                decoder = Decoder.build(file, spec, modules, context, progress, profile, calibration_tokens(tokenizer))
        except BaseException as error:
            if own_modules:
                modules.close()
            if not isinstance(error, OutOfMemory):
                raise

            def needs(context: int) -> MemoryNeeded:
                return memory_needed(
                    file, spec, context, device.target, profile, ranks=device.ranks, gathers=device.gathers
                )  # fmt: skip

            needed, each = needs(context), " on each" if device.ranks > 1 else ""
            fits = longest_that_fits(lambda tokens: needs(tokens).total, context, free)
            less = f"a context of {fits} tokens would fit" if fits else "no context would fit"
            message = (
                f"{path}: {device.name} has no room for the model, which needs {needed}{each}; {free} bytes were free "
                f"({error}); {less}"
            )
            raise OutOfMemory(message, needed.total, free) from error
        return cls(spec, tokenizer, decoder, modules, owns_modules=own_modules)

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
        for close in self._closers:
            close()

    def on_close(self, close: Callable[[], None]) -> None:
        """Have this called when the model has been closed: by whoever made a device for it alone."""
        self._closers.append(close)

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
        self._require_open()
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
        engine = self.engine(slots=slots, **{"forgets": True, **options})
        return Scheduler(engine, self.tokenizer, prompt_rows=prompt_rows, draft=draft, owner=self.device.owner)

    def logits(self, tokens: Prompt) -> NDArray[np.float32]:
        """f32[len, vocab]: the logits after each token of a text, or of token ids. Starts a new sequence. A text is encoded as
        by `generate`."""
        prompt = self._prompt(tokens)
        rows = np.empty((len(prompt), self.spec.vocab), np.float32)
        with self.decoder.busy("computing logits"):
            self.decoder.reset()
            for row, token in zip(rows, prompt, strict=True):
                self.decoder.step(token)
                row[:] = self.decoder.logits()
        return rows

    def forget(self) -> None:
        """The next call of `generate` computes its whole prompt, whatever was computed before. ModelError in an `on_token`."""
        self._require_open()
        with self.decoder.busy("forgetting"):
            self.decoder.reset()

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Collection[str] = (),
        stop_tokens: Collection[int] | None = None,
        logprobs: int | None = None,
        grammar: Grammar | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:
        """Continue the prompt, text or token ids, by at most `max_tokens` tokens (default: until the context is full). What is
        written in a text is text: control tokens are not looked for in it (`tokenizer.encode` finds them).

        sampler: chooses the tokens (default: the likeliest); stop: strings before which the text ends, also those that are
        or have control tokens, which the text itself does not show; stop_tokens: tokens that end it and are not part of the
        result (default: the vocabulary's ends of text, turn and message, `tokenizer.eos_ids`; none with `()`); logprobs:
        how many of the likeliest tokens of each place are told with their probabilities (0: those of the answer alone;
        None: nothing); grammar: what the text of the answer must be, as far as it goes; `on_token` sees each token as soon
        as it is known; the model is busy meanwhile. ModelError if the logits hold NaN, and in an `on_token` of the same
        model.

        Leading tokens that the sequence before had too, in its prompt or its answer, are not computed again: a conversation
        costs its new tokens, and `cached_prompt_tokens` says how many others there were. A step is started before the token
        before it was read (`Decoder.run_ahead`), be that the likeliest, drawn (`Decoder.drawing`) or chosen among those that a
        grammar allows (`Decoder.choosing`); where it ends the answer, the step does not count. With a bundle, which has no
        kernel for the last two, with settings that look at more than the logits, and with logprobs the host chooses the same
        tokens, and no step is started ahead. The answer is that of a new sequence; its logits are to the last bit if the
        profile is `batch_invariant` (the tokens of an answer are computed again then)."""
        if on_token is not None and not callable(on_token):
            raise ArgumentError(f"on_token is {described(on_token)}; allowed: a function of a token id")
        with self.stream(
            prompt, max_tokens=max_tokens, sampler=sampler, stop=stop, stop_tokens=stop_tokens, logprobs=logprobs,
            grammar=grammar,
        ) as pieces:  # fmt: skip
            for piece in pieces:
                if on_token is not None and piece.token is not None:
                    on_token(piece.token)
        made = pieces.generation
        _log.debug("%d tokens in %.3f s", len(made.tokens), made.prompt_seconds + made.decode_seconds)
        return made

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Collection[str] = (),
        stop_tokens: Collection[int] | None = None,
        logprobs: int | None = None,
        grammar: Grammar | None = None,
        progress: Progress | None = None,
    ) -> AnswerStream:
        """As `generate`, piece by piece as they come: iterate over what is returned. Nothing runs before the first piece is
        asked for. progress: is told how many tokens of the prompt have been read, of how many."""
        ids = self._prompt(prompt)
        sampler = Sampler() if sampler is None else instance("sampler", sampler, Sampler)
        sampler.adjustments.require(self.spec.vocab)
        asked = AnswerRequest(
            ids,
            self.context if max_tokens is None else whole("max_tokens", max_tokens, 1),
            sampler,
            self.tokenizer.eos_ids if stop_tokens is None else frozenset(tokens("stop_tokens", stop_tokens, self.spec.vocab)),
            StopStrings(stop),
            None if logprobs is None else whole("logprobs", logprobs, 0),
            None if grammar is None else instance("grammar", grammar, Grammar, "Grammar.json_schema, .regex or .lark"),
            progress,
        )
        generation = Generation(prompt_tokens=len(ids))
        return AnswerStream(generation, answer_pieces(self.decoder, self.tokenizer, asked, generation))

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        template: str | None = None,
        **options: Any,
    ) -> Generation:
        """The answer to a conversation: `generate` for its `chat_ids`, with the options of that. A conversation that goes on
        with the answer, and one message more, computes what is new alone."""
        ids = self.chat_ids(messages, system=system, tools=tools, variables=variables, template=template)
        return self.generate(ids, **options)

    def chat_ids(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> list[int]:
        """The token ids of a conversation, as the model's chat template writes it, up to where its answer begins. A control
        token that somebody writes into a message is text.

        messages: mappings with "role" and "content", or one text, of a user; system: a system message before them; tools: what
        the template shows the model of functions that it may call; variables: others that the template knows, such as
        enable_thinking; template: the name of one of the file's chat templates, by default `tool_use` where there are tools and
        such a one, else the default one. ModelError if there is no template, and for whatever it does wrong; ArgumentError for
        a `system` beside messages that begin with one, and for a name that no template has."""
        self._require_open()
        said = conversation(messages, system)
        extra = dict(variables or {}) | ({} if tools is None else {"tools": [dict(tool) for tool in tools]})
        return chat_ids(self.tokenizer, said, template=template, extra=extra)

    def logprobs(self, prompt: Prompt) -> NDArray[np.float64]:
        """f64[len - 1]: the natural logarithm of the probability of each token of a text, or of token ids, but the first, after
        those before it. Holds one row of logits at a time. Starts a new sequence. A text is encoded as by `generate`."""
        ids = self._prompt(prompt)
        found = np.empty(len(ids) - 1, np.float64)
        with self.decoder.busy("computing probabilities"):
            self.decoder.reset()
            for at, (token, following) in enumerate(pairwise(ids)):
                self.decoder.step(token)
                found[at] = log_softmax(self.decoder.logits())[following]
        return found

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, pooling: Pooling | None = None, unit: bool = True
    ) -> NDArray[np.float32]:
        """f32[len(texts), hidden], or f32[hidden] of one text: each text, or list of token ids, as one vector, made of the
        states behind the last norm of its tokens. Starts a new sequence for each. Control tokens are not looked for in a text.

        pooling: the mean of the states, the first ("cls") or the last one (default: what the file says, else the mean); unit:
        of length 1, so that the product of two vectors is the cosine of their angle. ModelError for a file without a
        vocabulary, and for a pooling of its own that is none of these; ArgumentError for a text that is longer than the context
        or has no tokens."""
        self._require_open()
        is_one = isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], Integral))
        many = [texts] if is_one else list(texts)
        asked = pooling_of(self.spec, self.tokenizer.path) if pooling is None else one_of("pooling", pooling, POOLINGS)
        ids = [self._prompt(text) for text in many]
        vectors = last_norm(self.decoder.weights)
        found = np.empty((len(many), self.spec.hidden), np.float32)
        with self.decoder.busy("embedding"):
            for row, tokens_of_one in zip(found, ids, strict=True):
                self.decoder.reset()
                states = []
                for token in tokens_of_one:
                    self.decoder.step(token, head=False)
                    states.append(self.decoder.hidden())
                row[:] = embedding(states, self.spec.norm, vectors, asked, unit=unit)
        return found[0] if is_one else found

    def rank(self, query: str, documents: str | Sequence[str]) -> NDArray[np.float32]:
        """f32[len(documents)], or f32[1] of one text: how well each answers the query, 0 to 1. That is a reranker's probability
        of its first label, "yes" of Qwen3's, after the prompt that the file's chat template `rerank` makes of both. Starts a
        new sequence for each. ModelError for a model that is no such one; ArgumentError for a prompt longer than the
        context."""
        self._require_open()
        require_head(self.spec, self.tokenizer)
        many = [documents] if isinstance(documents, str) else list(documents)
        prompts = [self._prompt(prompt_of(self.tokenizer, query, document)) for document in many]
        with self.decoder.busy("ranking"):
            return scores(self.decoder, prompts)

    def _require_open(self) -> None:
        if self.closed:
            raise ModelError("the model is closed; load it again")

    def _prompt(self, given: object) -> list[int]:
        """The tokens of a text, in which control tokens are not looked for, or of token ids. Raises what is wrong with them."""
        self._require_open()
        ids = self.tokenizer.encode(given, parse_special=False) if isinstance(given, str) else given
        prompt = tokens("the prompt", ids, self.spec.vocab)
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
