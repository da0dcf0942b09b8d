"""A loaded model on a device, and an answer that is printed while it is made: what the subcommands of `ptxrun` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from executor.base.environment import PRECISIONS
from ptxgen.commands import console
from ptxgen.commands.completion import complete_devices
from ptxgen.commands.options import FILE, Command, whole_numbers
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.model.answer import Generation
    from executor.model.generation import LanguageModel
    from executor.model.sampling import Sampler
    from executor.model.scheduling.scheduler import Scheduler
    from executor.model.scheduling.token_sequence import Usage

KV_TYPES: Final = ("f32", "f16", "q8_0")
"""Those of the kernels (ptxgen/kernels/attention/kv_type.py), which a command that only says --help does not import."""

LOOKUP: Final = "lookup"
"""The way to guess tokens that there is."""

model_dir_option = click.option(
    "--model-dir",
    metavar="DIR",
    type=FILE,
    help="Where models called hf://ORG/REPO:Q4_K_M are kept and looked up (default: PTXGEN_MODEL_DIR, else in the cache).",
)
device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    help="auto (a GPU if there is one), cuda, cuda:N or emulator.",
    shell_complete=complete_devices,
)
devices_option = click.option(
    "--devices",
    metavar="0,1",
    callback=lambda _ctx, _option, text: None if text is None else device_names(text),
    help="Several GPUs by number, which share the model; or emulator,emulator. In the place of --device.",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    help="accurate: a dot product is right to 1e-5; fast: activations of 8 bits (default: PTXGEN_PRECISION, else accurate).",
)
kv_type_option = click.option(
    "--kv-type",
    type=click.Choice(KV_TYPES),
    default=KV_TYPES[0],
    show_default=True,
    help="How keys and values are kept for attention: f16 and q8_0 take less memory and give up bits.",
)
context_option = click.option(
    "--context", type=click.IntRange(min=1), help="Room for this many tokens (default: the model's own limit, at most 4096)."
)
bundle_option = click.option(
    "--bundle", metavar="DIR", type=FILE, help="Take all kernels from this folder, which `ptxgen bundle` wrote, and write none."
)
sanitize_option = click.option(
    "--sanitize", is_flag=True, help="Check every access and barrier of every kernel; emulator only, and slow."
)


def tokens_option(use: str, **options: Any) -> Callable[[Command], Command]:
    """Decorator: the option --tokens, as `ids`, a list or None. use: what the ids are for."""

    def read(_context: object, _option: object, text: str | None) -> list[int] | None:
        return None if text is None else whole_numbers("--tokens", text, "token ids", "1,2,3")

    return click.option("--tokens", "ids", metavar="1,2,3", callback=read, help=use, **options)


@dataclass(frozen=True)
class AskedModel:
    """A model as the user calls it, by a path or a name, and the folder of models if one was named."""

    name: str
    folder: Path | None

    @cached_property
    def path(self) -> Path:
        """Its (first) file. If it is not here it is fetched now, with a progress bar: ask when all else was found right. Errors
        as those of `local_model`."""
        from executor.gguf.locate import local_model

        with console.progress() as report:
            return local_model(self.name, self.folder, report)


def model_argument(command: Command) -> Command:
    """Decorator: the argument MODEL and the option --model-dir, as `asked`."""

    @wraps(command)
    def with_model(*, model: str, model_dir: Path | None, **options: Any) -> Any:
        return command(asked=AskedModel(model, model_dir), **options)

    return click.argument("model", metavar="MODEL", type=click.Path())(model_dir_option(cast(Command, with_model)))


def session_options(command: Command) -> Command:
    """Decorator: all that `session` takes, but the model."""
    for option in (sanitize_option, bundle_option, context_option, precision_option, devices_option, device_option):
        command = option(command)
    return command


@dataclass(frozen=True)
class ModelSession:
    """load_seconds: until the model was ready, kernels included."""

    model: LanguageModel
    load_seconds: float

    def device_facts(self) -> dict[str, Any]:
        """What the device is, and why it was taken, ready for JSON."""
        return {"reason": self.model.device.reason} | self.model.device.describe()

    def prompt_ids(self, text: str, *, chat: bool, special: bool = False) -> list[int]:
        """Token ids of a prompt, or of a conversation that starts with it. special: control tokens written in a prompt count.
        Errors as `chat_ids`."""
        return self.chat_ids(text) if chat else self.model.tokenizer.encode(text, parse_special=special)

    def scheduler(self, needs: Sequence[int], batch: int, draft: str | None) -> Scheduler:
        """For sequences of up to so many tokens each, prompts included: up to `batch` of them at a time, in a cache in which
        the longest of them have room together. draft: LOOKUP or nothing. ArgumentError for a context shorter than a page."""
        from executor.model.engine import PAGE_LEN
        from executor.model.scheduling.prompt_lookup import PromptLookup

        context = self.model.context // PAGE_LEN * PAGE_LEN
        if not context:
            raise ArgumentError(
                f"the context is {self.model.context} tokens; for several prompts or drafts at least {PAGE_LEN}"
            )
        slots = min(batch, len(needs))
        longest = sorted((-(-min(need, context) // PAGE_LEN) for need in needs), reverse=True)[:slots]
        pages = sum(longest) + slots  # one more each: who comes later leaves a page to everyone who runs
        guess = None if draft is None else PromptLookup
        return self.model.scheduler(slots=slots, pages=pages, page_len=PAGE_LEN, context=context, draft=guess)

    def answer(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int | None,
        sampler: Sampler,
        on_text: Callable[[str], None] | None,
        **options: Any,
    ) -> Generation:
        """Continue the prompt; `on_text` sees the text as it comes, after a bar for the prompt."""
        with ExitStack() as reading:
            report = reading.enter_context(console.progress())
            with self.model.stream(prompt, max_tokens=max_tokens, sampler=sampler, progress=report, **options) as stream:
                for piece in stream:
                    reading.close()
                    if piece.text and on_text is not None:
                        on_text(piece.text)
        return stream.generation

    def drafted_answer(
        self, prompt: Sequence[int], *, max_tokens: int, sampler: Sampler, on_text: Callable[[str], None] | None
    ) -> tuple[Generation, Usage]:
        """As `answer`, by a greedy sampler, with tokens that are guessed and verified several in a step: the same text. Usage
        says how many guesses there were, and how many were right."""
        from executor.model.answer import Generation

        with self.scheduler([len(prompt) + max_tokens], 1, LOOKUP) as scheduler:
            start = time.perf_counter()
            request = scheduler.submit(prompt, max_tokens=max_tokens, sampler=sampler)
            first: float | None = None
            for piece in request:
                first = first or time.perf_counter()
                if piece.text and on_text is not None:
                    on_text(piece.text)
            end = time.perf_counter()
        stopped = request.stopped
        assert stopped == "eos" or stopped == "length" or stopped == "context"
        first = first or end
        generation = Generation(request.tokens, request.text, stopped, len(prompt), first - start, end - first)
        return generation, request.usage

    def warn_if_full(self, generation: Generation) -> None:
        """A line on stderr if the answer ends because the context is full, and what can be done."""
        from executor.model.context import ContextLimit

        if generation.stopped == "context":
            size, limit = self.model.context, ContextLimit.of(self.model.spec)
            cure = (
                f"--context takes up to {limit.tokens}"
                if size < limit.tokens
                else f"the model has no longer one ({limit.reason})"
            )
            console.echo(f"stopped: the context of {console.counted(size, 'token')} is full; {cure}", err=True)

    def chat_ids(self, question: str) -> list[int]:
        """The prompt of a conversation that starts with this question. ModelError if the model has no chat template."""
        from executor.base.errors import ModelError

        if not self.model.tokenizer.chat_templates.named:
            raise ModelError("the file has no chat template; leave out --chat", self.model.tokenizer.path)
        return self.model.chat_ids(question)


@contextmanager
def session(
    path: Path,
    device: str,
    *,
    devices: Sequence[str] | None = None,
    context: int | None = None,
    sanitize: bool = False,
    bundle: Path | None = None,
    precision: str | None = None,
) -> Iterator[ModelSession]:
    """Open the device, or several, load the model onto it with a progress bar, and close both afterwards."""
    from executor.api.executor import CudaExecutor

    start = time.perf_counter()
    with CudaExecutor(device, devices=devices, bundle=bundle, sanitize=sanitize) as executor:
        if precision is not None and bundle is not None and precision != executor.profile.precision:
            raise ArgumentError(f"{bundle} was written with --precision {executor.profile.precision}; leave out --precision")
        if precision is not None:
            executor.profile = replace(executor.profile, precision=precision)
        with console.progress() as report:
            model = executor.load_model(path, context=context, progress=report)
        yield ModelSession(model, time.perf_counter() - start)


def device_names(text: str) -> list[str]:
    """Of --devices: numbers of GPUs, or names as CudaExecutor takes them."""
    names = [name.strip() for name in text.split(",")]
    return [f"cuda:{name}" if name.isascii() and name.isdigit() else name for name in names]


def write_text(text: str) -> None:
    """Text on stdout at once, as it is."""
    click.echo(text, nl=False)
