"""`ptxrun generate`: continues prompts, or answers them, with any supported GGUF model."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from executor.commands.grammar import grammar_of, grammar_options
from executor.commands.sampling import facts_of, sampler_of, sampling_options, taken
from executor.commands.session import (
    LOOKUP,
    AskedModel,
    ModelSession,
    model_argument,
    session,
    session_options,
    tokens_option,
    write_text,
)
from ptxgen.commands import console
from ptxgen.commands.options import FILE, json_option
from ptxgen.errors import ArgumentError
from ptxgen.files import read_regular

if TYPE_CHECKING:
    from executor.model.answer import Generation
    from executor.model.sampling import Sampler
    from executor.model.scheduling.token_sequence import Usage

MOST_BYTES: Final = 1 << 30
"""Of a file of prompts."""


@click.command("generate")
@model_argument
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt; - reads it from stdin, less its last newline.")
@click.option(
    "--prompts",
    metavar="FILE.jsonl",
    type=FILE,
    help='Many prompts: a line each, {"prompt": "..."} and maybe id, max_tokens, stop and settings such as top_k and seed.',
)
@tokens_option("The prompt as token ids, for a model without a vocabulary, too; ids are printed in the place of text.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, metavar="B", help="Most prompts at a time.")
@click.option(
    "--draft", type=click.Choice([LOOKUP]), help="Guess tokens by what followed the last ones before; the text is the same."
)
@click.option("-n", "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Most tokens to generate.")
@click.option(
    "--greedy", is_flag=True, help="Take the likeliest token each time: the default where nothing that draws is given."
)
@grammar_options
@sampling_options
@click.option("--special", is_flag=True, help="Control tokens written in a prompt are control tokens, not text.")
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template, as a user's message.")
@session_options
@click.option(
    "--logprobs", type=click.IntRange(min=0), metavar="N", help="With --json: how likely each token was, and the N likeliest."
)
@json_option("Prompt ids, token ids, text, timings and device as JSON.")
def generate_command(
    asked: AskedModel,
    prompt: str | None,
    prompts: Path | None,
    ids: list[int] | None,
    batch: int,
    draft: str | None,
    max_tokens: int,
    greedy: bool,
    special: bool,
    chat: bool,
    logprobs: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text with a GGUF model. The text goes to stdout as it comes, what is said about it to stderr.

    Many prompts run together; each answer is printed when it is whole, with --json as a line of JSON. What a line of the file
    does not say is as the options have it.

    \b
    Examples:
      ptxrun generate model.gguf -p "The capital of France is" -n 32
      ptxrun generate model.gguf --chat -p "Tell me a joke." --temperature 0.8 --top-p 0.95 --seed 1
      ptxrun generate model.gguf --prompts prompts.jsonl --json
      ptxrun generate model.gguf --tokens 504,3575,282
    """
    from executor.commands.prompts import accepted_drafts, answer_all, read_prompts

    if [prompt, prompts, ids].count(None) != 2:
        raise click.UsageError("give --prompt, --prompts or --tokens, one of them")
    if ids is not None and (chat or special):
        raise click.UsageError(f"{'--chat' if chat else '--special'} says how text is read, so it does not go with --tokens")
    if chat and special:
        raise click.UsageError("--special does not go with --chat: what is said in a conversation is text")
    given, grammar = taken(options), grammar_of(options)
    if logprobs is not None and (not as_json or draft is not None or prompts is not None):
        raise click.UsageError("--logprobs goes with --json and --prompt, and not with --draft")
    if draft is not None and grammar is not None:
        raise click.UsageError(f"--draft {draft} guesses text of any form; leave out what says the form")
    if greedy and given:
        raise click.UsageError(f"--greedy draws nothing, so it does not go with --{next(iter(given)).replace('_', '-')}")
    if prompts is not None:
        lines = read_prompts(str(prompts), _content(prompts), max_tokens, lambda own: _line_sampler(greedy, draft, given, own))
        with session(asked.path, **options) as running:
            answer_all(
                running,
                str(prompts),
                lines,
                chat=chat,
                special=special,
                grammar=grammar,
                draft=draft,
                batch=batch,
                as_json=as_json,
            )
        return
    sampler = _sampler(draft, given)
    prompt = _stdin() if prompt == "-" else prompt
    with session(asked.path, **options) as running:
        on_text, usage = None if as_json or prompt is None else write_text, None
        if prompt is not None:
            ids = running.prompt_ids(prompt, chat=chat, special=special)
        assert ids is not None
        if draft is None:
            generation = running.answer(
                ids, max_tokens=max_tokens, sampler=sampler, on_text=on_text, grammar=grammar, logprobs=logprobs
            )
        else:
            generation, usage = running.drafted_answer(ids, max_tokens=max_tokens, sampler=sampler, on_text=on_text)
        if as_json:
            console.print_json(_facts(asked.path, running, ids, generation, sampler, usage))
            return
        console.echo(",".join(map(str, generation.tokens)) if prompt is None else "")
        console.echo(
            f"{console.counted(len(generation.tokens), 'token')}, {generation.tokens_per_second:.1f} tokens/s, "
            f"first after {generation.prompt_seconds:.2f} s, {running.model.device.name}",
            err=True,
        )
        if usage is not None:
            console.echo(accepted_drafts(usage.accepted_tokens, usage.drafted_tokens), err=True)
        running.warn_if_full(generation)


def _stdin() -> str:
    """All of it, but for the one newline that `echo` and every text file end with."""
    try:
        return re.sub(r"\r?\n\Z", "", sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as error:
        raise ArgumentError(f"stdin is not UTF-8: byte {error.start}") from error


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, MOST_BYTES)
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read: {error.strerror or error}") from error


def _line_sampler(greedy: bool, draft: str | None, given: Mapping[str, Any], own: Mapping[str, Any]) -> Sampler:
    """Of a prompt in a file: what it says of its own comes before the options."""
    if greedy and own:
        raise ArgumentError(f"--greedy draws nothing, so it does not go with {next(iter(own))}")
    return _sampler(draft, {**given, **own})


def _sampler(draft: str | None, chosen: Mapping[str, Any]) -> Sampler:
    """By the settings that were chosen; greedy if there are none."""
    sampler = sampler_of(chosen)
    if draft is not None and not sampler.is_greedy:
        raise ArgumentError(f"--draft {draft} is for greedy text, which it leaves as it is; leave out {', '.join(chosen)}")
    return sampler


def _facts(
    path: Path, running: ModelSession, ids: list[int], generation: Generation, sampler: Sampler, usage: Usage | None
) -> dict[str, Any]:
    """usage: where tokens were guessed."""
    drafts = {} if usage is None else {"drafted_tokens": usage.drafted_tokens, "accepted_tokens": usage.accepted_tokens}
    return {
        "model": str(path),
        "prompt_ids": ids,
        "token_ids": generation.tokens,
        "text": generation.text,
        "stopped": generation.stopped,
        "sampling": facts_of(sampler),
        **({"logprobs": [asdict(one) for one in generation.logprobs]} if generation.logprobs else {}),
        "timings": {
            "load_seconds": running.load_seconds,
            "first_token_seconds": generation.prompt_seconds,
            "decode_seconds": generation.decode_seconds,
            "tokens_per_second": generation.tokens_per_second,
        },
        **drafts,
        "precision": running.model.decoder.profile.precision,
        "kernels": asdict(running.model.modules.counts),
        "device": running.device_facts(),
    }
