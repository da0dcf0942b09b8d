"""The server while it runs: its socket, its signals, and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

import uvicorn

from executor.serve.access import AccessRules
from executor.serve.app import application
from executor.serve.connection import Connection
from executor.serve.service import Service
from ptxgen.errors import ArgumentError

BACKLOG: Final = 2048
"""Connections that wait to be taken."""
KEEP_ALIVE: Final = 75
"""Seconds that a connection may rest between two requests."""
AFTERWARDS: Final = 5.0
"""Seconds that what was cut off has to say so, and the worker to end."""
SWITCH: Final = 0.0005
"""Seconds after which the event loop lets the worker go on, which may have a step to start; Python's 0.005 is a step's time."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, which takes no connections yet. ArgumentError if that cannot be had."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ArgumentError(f"--host {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ArgumentError(f"{host} port {port} cannot be bound: {error.strerror or error}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(service: Service, access: AccessRules, listener: socket.socket, ready: Callable[[], None]) -> bool:
    """Answer requests until SIGINT or SIGTERM; then no new ones, until the last is answered or `drain_seconds` are over. A
    second signal ends that at once, a third the process. ready: is called when requests are answered. Whether every request
    was answered to its end."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        return asyncio.run(_serve(service, access, listener, ready))
    finally:
        sys.setswitchinterval(interval)


async def _serve(service: Service, access: AccessRules, listener: socket.socket, ready: Callable[[], None]) -> bool:
    service.start()
    config = uvicorn.Config(
        application(service, access),
        loop="none",
        http=cast(type[asyncio.Protocol], partial(Connection, service.limits.read_seconds)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(service.limits.drain_seconds + AFTERWARDS),
    )
    server = SignalledServer(config, service, ready)
    try:
        await server.serve([listener])
    finally:
        # Without blocking the event loop, on which the worker's last words are delivered.
        if not await asyncio.get_running_loop().run_in_executor(None, service.stop, AFTERWARDS):
            _log.error("the worker has not ended within %g s", AFTERWARDS)
            os._exit(1)
    return not server.cut


class SignalledServer(uvicorn.Server):
    """Ends by the signals of this package, as `serve` says."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready
        self._asked = 0
        self.cut = False
        """Whether answers were cut off at the end."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that requests are answered as soon as they are."""
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take them in the block. One that the process was started to ignore stays ignored."""
        if threading.current_thread() is not threading.main_thread():  # no other is given signals
            yield
            return
        loop = asyncio.get_running_loop()
        taken = {number: signal.getsignal(number) for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
        for number in taken:
            loop.add_signal_handler(number, self._leave, number)
        try:
            yield
        finally:
            for number, handler in taken.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _leave(self, number: int) -> None:
        self._asked += 1
        if self._asked > 2:
            os._exit(128 + number)
        if self._asked == 2:
            self._cut()
            return
        _log.info(
            "%s: %d answers are awaited for at most %g s",
            signal.Signals(number).name,
            self._service.places.taken,
            self._service.limits.drain_seconds,
        )
        self._service.draining = True
        self.should_exit = True
        asyncio.get_running_loop().call_later(self._service.limits.drain_seconds, self._cut)

    def _cut(self) -> None:
        self.cut = self.cut or self._service.places.taken > 0
        self._service.cut()
