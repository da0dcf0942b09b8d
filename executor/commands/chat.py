"""`ptxrun chat`: a conversation with a GGUF model in the terminal."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from executor.commands.grammar import grammar_of, grammar_options
from executor.commands.probabilities import probability_lines
from executor.commands.sampling import sampler_of, sampling_options, taken
from executor.commands.session import AskedModel, ModelSession, model_argument, session, session_options, write_text
from ptxgen.commands import console
from ptxgen.commands.options import FILE
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.files import read_text

if TYPE_CHECKING:
    from executor.model.logprobs import TokenLogprob
    from executor.model.sampling import Sampler
    from executor.text.grammar import Grammar

PROMPT: Final = "> "
MOST_BYTES: Final = 1 << 24
"""Of a file with the first message."""
INTERRUPTED: Final = "interrupted"
STOPPED: Final = {
    "stop": "a stop string",
    "length": "--max-tokens",
    "context": "the context is full; /clear begins anew",
    INTERRUPTED: "Ctrl-C",
}
"""Why an answer ended that the model would have gone on with."""


@dataclass
class Conversation:
    """What was said so far, and how it is answered."""

    running: ModelSession
    sampler: Sampler
    max_tokens: int | None
    stop: tuple[str, ...]
    system: str | None
    template: str | None
    grammar: Grammar | None
    logprobs: int | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def answer(self, said: str) -> None:
        """Say something and print the answer as it comes. What was answered before Ctrl-C stays; where nothing was, and after
        an error, it is as if nothing had been said."""
        model, asked = self.running.model, {"role": "user", "content": said}
        ids = model.chat_ids([*self.messages, asked], system=self.system, template=self.template)
        answered: list[str] = []
        stopped: str = INTERRUPTED
        likely: list[TokenLogprob] = []

        def show(text: str) -> None:
            answered.append(text)
            write_text(text)

        with suppress(KeyboardInterrupt):
            generation = self.running.answer(
                ids,
                max_tokens=self.max_tokens,
                sampler=self.sampler,
                on_text=show,
                stop=self.stop,
                grammar=self.grammar,
                logprobs=self.logprobs,
            )
            stopped, likely = generation.stopped, generation.logprobs
        if answered or stopped != INTERRUPTED:
            self.messages += [asked, {"role": "assistant", "content": "".join(answered)}]
        write_text("\n")
        if stopped in STOPPED:
            console.echo(f"(ended by: {STOPPED[stopped]})", err=True)
        for line in probability_lines(likely, model.tokenizer):
            console.echo(line, err=True)

    def clear(self) -> None:
        """Forget what was said, but for the system message."""
        self.messages.clear()

    def save(self, path: str) -> None:
        """Write the conversation as JSON. ArgumentError if that cannot be done, or a file is there."""
        if not path:
            raise ArgumentError("/save needs the name of a file")
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        text = json.dumps({"messages": [*system, *self.messages]}, indent=1, ensure_ascii=False) + "\n"
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ArgumentError(f"{path}: cannot be written: {error.strerror or error}") from error
        console.echo(f"{path}: {console.counted(len(self.messages), 'message')}", err=True)


COMMANDS: Final[Mapping[str, tuple[str, Callable[[Conversation, str], None]]]] = {
    "/clear": ("begin a new conversation", lambda conversation, _: conversation.clear()),
    "/save": ("FILE: write the conversation as JSON", lambda conversation, path: conversation.save(path)),
    "/help": ("what can be typed", lambda conversation, _: _help()),
}


@click.command("chat")
@model_argument
@click.option("--system", metavar="TEXT", help="A system message before the conversation.")
@click.option("--template", metavar="NAME", help="The chat template, where the file has several (default: its default one).")
@click.option("--prompt-file", metavar="FILE", type=FILE, help="What is said first, from a file, less its last newline.")
@click.option("--stop", multiple=True, metavar="TEXT", help="A text before which an answer ends; may be given several times.")
@click.option(
    "-n", "--max-tokens", type=click.IntRange(min=1), help="Most tokens of an answer (default: what the context has)."
)
@click.option(
    "--logprobs",
    type=click.IntRange(min=0),
    metavar="N",
    help="After each answer, how likely each of its tokens was, in per cent, and the N likeliest in its place.",
)
@grammar_options
@sampling_options
@session_options
def chat_command(
    asked: AskedModel,
    system: str | None,
    template: str | None,
    prompt_file: Path | None,
    stop: tuple[str, ...],
    max_tokens: int | None,
    logprobs: int | None,
    **options: Any,
) -> None:
    """Talk with a GGUF model. Each line is a message; the answer comes as it is made, and knows what was said before.

    Ctrl-C ends an answer, /clear begins a new conversation, /save FILE writes it, /exit or the end of the input leaves. Where
    stdin is no terminal its lines are the messages. What is said about an answer goes to stderr.

    \b
    Examples:
      ptxrun chat model.gguf --system "You are terse." --temperature 0.7
      printf 'Hello\\nAnd in French?\\n' | ptxrun chat model.gguf -n 64
    """
    sampler, grammar = sampler_of(taken(options)), grammar_of(options)
    first = None if prompt_file is None else _content(prompt_file)
    with session(asked.path, **options) as running, _ctrl_c_raises():
        conversation = Conversation(running, sampler, max_tokens, stop, system, template, grammar, logprobs)
        # A model that cannot converse is an error before the first input.
        running.model.chat_ids("x", system=system, template=template)
        if sys.stdin.isatty():
            console.echo(f"{running.model.device.name}; /help says what can be typed", err=True)
        for said in _messages(first):
            try:
                if not _obeyed(conversation, said):
                    conversation.answer(said)
            except KeyboardInterrupt:
                console.echo("", err=True)
            except PtxGenError as error:
                if not sys.stdin.isatty():
                    raise
                console.echo(str(error), err=True)


def _obeyed(conversation: Conversation, said: str) -> bool:
    """Whether it was a command, which has run then. ArgumentError for one that there is not."""
    if not said.startswith("/"):
        return False
    name, _, rest = said.partition(" ")
    if name not in COMMANDS:
        raise ArgumentError(f"there is no command {name}; allowed: {', '.join(COMMANDS)}, /exit")
    COMMANDS[name][1](conversation, rest.strip())
    return True


def _help() -> None:
    for name, (does, _) in COMMANDS.items():
        console.echo(f"{name:8}{does}", err=True)
    console.echo("/exit   leave, as the end of the input does", err=True)
    console.echo("Ctrl-C  end an answer", err=True)


def _messages(first: str | None) -> Iterator[str]:
    """What is typed, a line each, but for empty ones, until /exit or the end. A terminal remembers lines for the arrow keys, as
    long as this runs."""
    if first is not None:
        yield first
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  (input() edits lines and remembers them by it)
    while True:
        try:
            line = input(PROMPT) if sys.stdin.isatty() else sys.stdin.readline()
        except KeyboardInterrupt:
            console.echo("", err=True)
            continue
        except EOFError:
            console.echo("", err=True)
            return
        if not line and not sys.stdin.isatty():
            return
        line = line.strip("\r\n")
        if line == "/exit":
            return
        if line.strip():
            yield line


@contextmanager
def _ctrl_c_raises() -> Iterator[None]:
    """In the block Ctrl-C is a KeyboardInterrupt each time; else the second one ends the process (ptxgen/commands/start.py)."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _content(path: Path) -> str:
    text = read_text(path, MOST_BYTES).removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise ArgumentError(f"{path} is empty; allowed: what is to be said first")
    return text
