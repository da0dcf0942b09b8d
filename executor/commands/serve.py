"""`ptxrun serve`: a model behind OpenAI's API."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from executor.commands.session import (
    LOOKUP,
    AskedModel,
    ModelSession,
    context_option,
    device_option,
    devices_option,
    kv_type_option,
    model_argument,
    precision_option,
    session,
)
from ptxgen.commands import console
from ptxgen.commands.options import FILE
from ptxgen.commands.start import FAILED
from ptxgen.errors import PtxGenError
from ptxgen.extras import install

if TYPE_CHECKING:
    from executor.serve.service import Served

SERVER: Final = ("prometheus_client", "starlette", "uvicorn")
"""What the server imports of the extra `serve`."""


class NoServer(PtxGenError):
    """What the server is made of is not installed."""


@click.command("serve")
@model_argument
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen at; the default is this machine's alone."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 takes a free one.")
@click.option("--name", metavar="NAME", help="What requests call the model (default: its file's name without .gguf).")
@click.option("--slots", type=click.IntRange(1, 4096), default=8, show_default=True, metavar="N", help="Answers at a time.")
@click.option(
    "--queue", type=click.IntRange(0), default=64, show_default=True, metavar="N", help="Answers that may wait; more get 429."
)
@context_option
@click.option(
    "--cache-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens that the cache of keys and values has room for, of all answers together (default: --slots times --context).",
)
@kv_type_option
@click.option(
    "--draft", type=click.Choice([LOOKUP]), help="Guess tokens of greedy answers by what followed the last ones before."
)
@click.option("--api-key-file", type=FILE, metavar="FILE", help="Clients must send one of the keys in this file, a line each.")
@click.option(
    "--max-body-mb", type=click.IntRange(1, 1024), default=8, show_default=True, metavar="MB", help="Largest request."
)
@click.option(
    "--read-seconds",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Longest time to send a request.",
)
@click.option(
    "--request-seconds",
    type=click.FloatRange(min=0.1),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Longest time to answer one.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="How long the first Ctrl-C or SIGTERM lets answers go on.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="A device that has not ended a step for so long is said to have failed, until it ends it.",
)
@click.option(
    "--warmup/--no-warmup",
    "prepares",
    default=None,
    help="Compile and capture most kinds of steps before the first request, some seconds (default: on a GPU).",
)
@device_option
@devices_option
@precision_option
def serve_command(
    asked: AskedModel,
    host: str,
    port: int,
    name: str | None,
    slots: int,
    queue: int,
    cache_tokens: int | None,
    kv_type: str,
    draft: str | None,
    api_key_file: Path | None,
    max_body_mb: int,
    read_seconds: float,
    request_seconds: float,
    drain_seconds: float,
    step_seconds: float,
    prepares: bool | None,
    **options: Any,
) -> None:
    """Serve a GGUF model over HTTP, as OpenAI's API has it: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models,
    with /health, /metrics and a page to talk to the model at /. Answers run together, and those that come later join them.

    Ctrl-C or SIGTERM takes no more requests and lets those that are there be answered; a second one ends them. Needs the extra
    `serve`. docs/serving.md has all of it.

    \b
    Examples:
      ptxrun serve model.gguf
      ptxrun serve model.gguf --slots 64 --context 8192 --cache-tokens 131072 --api-key-file keys.txt --host 0.0.0.0
      curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    _require_server()
    from executor.base.environment import API_KEY
    from executor.gguf.parts import stem_of
    from executor.serve.access import AccessRules, is_loopback, keys_of
    from executor.serve.capacity import serving_scheduler
    from executor.serve.limits import ServerLimits
    from executor.serve.server import bound, serve, url_of
    from executor.serve.service import Service

    access = AccessRules(keys_of(api_key_file, API_KEY.read()), host)
    seconds = {"request_seconds": request_seconds, "drain_seconds": drain_seconds, "step_seconds": step_seconds}
    limits = ServerLimits(slots, queue, max_body_mb << 20, read_seconds, **seconds)
    with bound(host, port) as listener, session(asked.path, **options) as running:
        model = running.model
        with console.progress() as report:
            scheduler = serving_scheduler(
                model, slots, cache_tokens, kv_type, guesses=draft is not None, prepares=prepares, progress=report
            )
        served = _served(running, name or stem_of(asked.path.name), asked.path, scheduler.engine.context)
        service = Service(served, scheduler, model.device.owner, model.embed, limits)

        def ready() -> None:
            with suppress(OSError):  # stderr may be closed
                console.echo(f"listening on {url_of(listener)}: {served.name} on {model.device.name}; Ctrl-C ends", err=True)
                if access.is_open and not is_loopback(host):
                    console.echo("no API key is asked for, and other machines may reach this: see --api-key-file", err=True)

        try:
            answered = serve(service, access, listener, ready)
        finally:
            model.device.owner.take_over()  # the worker has ended
    if not answered:
        console.echo("some answers were cut off", err=True)
        raise click.exceptions.Exit(FAILED)


def _require_server() -> None:
    missing = [name for name in SERVER if not _is_installed(name)]
    if missing:
        raise NoServer(f"ptxrun serve needs {', '.join(missing)}, not installed here; {install('serve')}")


def _is_installed(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True


def _served(running: ModelSession, name: str, path: Path, context: int) -> Served:
    from executor.serve.service import Served
    from ptxgen import __version__

    model = running.model
    precision = model.decoder.profile.precision
    return Served(
        name, int(path.stat().st_mtime), context, f"ptxgen-{__version__}-{precision}", model.tokenizer, model.chat_ids
    )
