"""What a worker is told on its command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.commands.session import KV_TYPES, device_names

PRECISIONS: Final = ("accurate", "fast")


@dataclass(frozen=True)
class Settings:
    """model: a path, or a name as hf://ORG/REPO:Q4_K_M; name: what requests call it; tokenizer: the folder that
    `ptxrun export-tokenizer` wrote, None to write one; devices: several that share the model, in the place of `device`;
    cache_tokens, precision: None for the usual ones. The last five are Dynamo's, as its frontend has them."""

    model: str
    name: str | None
    tokenizer: Path | None
    device: str
    devices: Sequence[str] | None
    precision: str | None
    slots: int
    context: int | None
    cache_tokens: int | None
    kv_type: str
    guesses: bool
    drain_seconds: float
    namespace: str
    component: str
    discovery_backend: str
    request_plane: str
    event_plane: str


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds")
    return seconds


def parsed(argv: Sequence[str] | None) -> Settings:
    """The settings of a command line (None: this process's). Ends the process with code 2 for what is wrong in it."""
    parser = argparse.ArgumentParser(
        prog="ptxgen-dynamo",
        description="A GGUF model as a worker of NVIDIA Dynamo.",
        epilog="example: ptxgen-dynamo model.gguf --discovery-backend file --event-plane zmq",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a GGUF file, or hf://ORG/REPO:Q4_K_M")
    add("--name", help="what requests call the model (default: its file's name without .gguf)")
    add("--tokenizer", type=Path, metavar="FOLDER",
        help="what `ptxrun export-tokenizer` wrote, where the frontend reads it, too (default: write one)")  # fmt: skip
    add("--device", default="auto", help="auto (a GPU if there is one), cuda, cuda:N or emulator (default: auto)")
    add("--devices", type=device_names, metavar="0,1", help="several GPUs by number, which share the model")
    add("--precision", choices=PRECISIONS, help="as in ptxrun serve")
    add("--slots", type=_whole, default=8, metavar="N", help="answers at a time (default: 8)")
    add("--context", type=_whole, metavar="N", help="tokens of a prompt and its answer (default: the model's, at most 4096)")
    add("--cache-tokens", type=_whole, metavar="N",
        help="tokens that the cache of keys and values has room for (default: --slots times --context)")  # fmt: skip
    add("--kv-type", choices=KV_TYPES, default=KV_TYPES[0], help="how keys and values are held (default: f32)")
    add("--draft", choices=["lookup"], help="guess tokens of greedy answers by what followed the last ones before")
    add("--drain-seconds", type=_seconds, default=30.0, metavar="S", help="how long SIGTERM lets answers go on (default: 30)")
    add("--namespace", default=os.environ.get("DYN_NAMESPACE", "dynamo"), help="Dynamo's (default: dynamo)")
    add("--component", default="ptxgen", help="Dynamo's: workers of one component serve one model (default: ptxgen)")
    add("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"), metavar="NAME",
        choices=["etcd", "file", "kubernetes", "mem"], help="as in the frontend: etcd, file or kubernetes")  # fmt: skip
    add("--request-plane", default=os.environ.get("DYN_REQUEST_PLANE", "tcp"), choices=["tcp", "nats"], metavar="NAME",
        help="as in the frontend: tcp (default) or nats")  # fmt: skip
    add("--event-plane", default=os.environ.get("DYN_EVENT_PLANE", "zmq"), choices=["zmq", "nats"], metavar="NAME",
        help="as in the frontend: zmq (default) or nats")  # fmt: skip
    found = parser.parse_args(argv)
    return Settings(
        model=found.model, name=found.name, tokenizer=found.tokenizer, device=found.device, devices=found.devices,
        precision=found.precision, slots=found.slots, context=found.context, cache_tokens=found.cache_tokens,
        kv_type=found.kv_type, guesses=found.draft is not None, drain_seconds=found.drain_seconds, namespace=found.namespace,
        component=found.component, discovery_backend=found.discovery_backend, request_plane=found.request_plane,
        event_plane=found.event_plane,
    )  # fmt: skip
