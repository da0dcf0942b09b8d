"""`ptxrun generate`: continues a prompt, or answers it, with any supported GGUF model."""

from __future__ import annotations

import re
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from executor.commands.session import ModelSession, model_argument, session, session_options, write_text
from ptxgen.commands import console
from ptxgen.commands.options import json_option
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.model.generation import Generation
    from executor.model.sampling import Sampler

SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "seed")
NEUTRAL: Final = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What a sampling option is when another one is given: the model's own distribution."""


@click.command("generate")
@model_argument
@click.option("-p", "--prompt", required=True, metavar="TEXT", help="The prompt; - reads it from stdin, less its last newline.")
@click.option("-n", "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Most tokens to generate.")
@click.option("--greedy", is_flag=True, help="Take the likeliest token each time: the default without the next five.")
@click.option("--temperature", type=float, metavar="T", help="Divides the logits; 0 is greedy.")
@click.option("--top-k", type=int, metavar="K", help="Draw from the K likeliest tokens; 0 is all.")
@click.option("--top-p", type=float, metavar="P", help="Draw from the likeliest tokens whose probabilities add up to P.")
@click.option("--min-p", type=float, metavar="P", help="Draw from tokens with at least P times the largest probability.")
@click.option("--seed", type=int, metavar="S", help="The same seed draws the same tokens (default: a new one each time).")
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template, as a user's message.")
@session_options
@json_option("Prompt ids, token ids, text, timings and device as JSON.")
def generate_command(path: Path, prompt: str, max_tokens: int, greedy: bool, chat: bool, as_json: bool, **options: Any) -> None:
    """Generate text with a GGUF model. The text goes to stdout as it comes, what is said about it to stderr.

    \b
    Examples:
      ptxrun generate model.gguf -p "The capital of France is" -n 32
      ptxrun generate model.gguf --chat -p "Tell me a joke." --temperature 0.8 --top-p 0.95 --seed 1
    """
    sampler = _sampler(greedy, {name: options.pop(name) for name in SAMPLING})
    prompt = _stdin() if prompt == "-" else prompt
    with session(path, **options) as running:
        ids = running.chat_ids(prompt) if chat else running.model.tokenizer.encode(prompt)
        generation, text = running.answer(ids, max_tokens=max_tokens, sampler=sampler, on_text=None if as_json else write_text)
        if as_json:
            console.print_json(_facts(path, running, ids, generation, text, sampler))
            return
        console.echo()
        console.echo(
            f"{console.counted(len(generation.tokens), 'token')}, {generation.tokens_per_second:.1f} tokens/s, "
            f"first after {generation.prompt_seconds:.2f} s, {running.model.device.name}",
            err=True,
        )
        running.warn_if_full(generation)


def _stdin() -> str:
    """All of it, but for the one newline that `echo` and every text file end with."""
    try:
        return re.sub(r"\r?\n\Z", "", sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as error:
        raise ArgumentError(f"stdin is not UTF-8: byte {error.start}") from error


def _sampler(greedy: bool, sampling: dict[str, Any]) -> Sampler:
    from executor.model.sampling import Sampler

    chosen = {name: value for name, value in sampling.items() if value is not None}
    if greedy and chosen:
        raise click.UsageError(f"--greedy draws nothing, so it does not go with --{next(iter(chosen)).replace('_', '-')}")
    if not chosen:
        return Sampler()
    return Sampler(**NEUTRAL | {"seed": secrets.randbits(32)} | chosen)


def _facts(
    path: Path, running: ModelSession, ids: list[int], generation: Generation, text: str, sampler: Sampler
) -> dict[str, Any]:
    return {
        "model": str(path),
        "prompt_ids": ids,
        "token_ids": generation.tokens,
        "text": text,
        "stopped": generation.stopped,
        "sampling": {name: getattr(sampler, name) for name in SAMPLING},
        "timings": {
            "load_seconds": running.load_seconds,
            "first_token_seconds": generation.prompt_seconds,
            "decode_seconds": generation.decode_seconds,
            "tokens_per_second": generation.tokens_per_second,
        },
        "precision": running.model.decoder.profile.precision,
        "kernels": asdict(running.model.modules.counts),
        "device": running.device_facts(),
    }
