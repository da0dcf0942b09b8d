"""One request from its head to the end of its answer: who may ask, what is read, what is sent, and that it ends when the client
has gone or the time is over. What is asked is the endpoints' business."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from executor.serve.access import AccessRules
from executor.serve.errors import ApiError, ClientGone
from executor.serve.service import Service, api_error
from executor.serve.wire import as_json

GONE: Final = 499
"""The status that is counted for a disconnected client."""
LAST_WORDS: Final = 5.0
"""Seconds in which a client must take an error."""
JSON_TYPE: Final = "application/json"
_DONE: Final = b"data: [DONE]\n\n"

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class Events:
    """The answer as server-sent events. Nothing is sent before the first one: until then an error has a status of its own."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = {
            **headers,
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        self.started = False

    async def send(self, *values: object) -> None:
        """An event for each value, as JSON."""
        await self._write(b"".join(b"data: " + as_json(value) + b"\n\n" for value in values))

    async def finish(self) -> None:
        """No more events."""
        await self._write(_DONE, more=False)

    async def fail(self, error: ApiError) -> None:
        """The last event says what went wrong."""
        await self._write(b"data: " + as_json(error.body()) + b"\n\n", more=False)

    async def _write(self, data: bytes, more: bool = True) -> None:
        if not self.started:
            self.started = True
            await self._send(_head(200, self._headers))
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


Handler = Callable[[Service, Any, Events], Awaitable[Any]]
"""Takes the JSON of a request. Returns what is to be sent as JSON, or None where it has sent events."""


class Endpoint:
    """An ASGI application for one path. handler: of requests with a body; without one, `answer` is sent."""

    def __init__(self, name: str, service: Service, access: AccessRules, handler: Handler) -> None:
        self._name = name
        self._service = service
        self._access = access
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        request = Request(scope, receive)
        events = Events(send, SAFE)
        status = 200
        try:
            self._access.require_host(request.headers)
            self._access.require_key(request.headers)
            self._service.require_ready()
            body = await _body(request, self._service)
            answer = await _while_connected(receive, self._answer(body, events))
            if answer is not None:
                await send_json(send, 200, answer)
        except (ClientGone, ClientDisconnect):
            status = GONE
        except Exception as error:
            failed = api_error(error)
            status = failed.status
            if status >= 500:
                _log.error("%s: %s", self._name, failed, exc_info=error if status == 500 else None)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS):  # the client may have stopped reading
                    await (events.fail(failed) if events.started else send_error(send, failed))
        finally:
            seconds = time.monotonic() - start
            self._service.metrics.request(self._name, status, seconds)
            _log.info("%s: %d after %.3f s", self._name, status, seconds)

    async def _answer(self, body: Any, events: Events) -> Any:
        seconds = self._service.limits.request_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._handler(self._service, body, events)
        except TimeoutError as error:
            raise ApiError(
                f"the answer took more than {seconds:g} s, the limit of this server; ask for fewer tokens or stream them",
                status=504,
                code="timeout",
            ) from error


SAFE: Final = {"X-Content-Type-Options": "nosniff"}


async def send_json(send: Send, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
    """A whole response."""
    await send_bytes(send, status, as_json(value), {"Content-Type": JSON_TYPE, **SAFE, **(headers or {})})


async def send_bytes(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """A whole response of any type."""
    await send(_head(status, {**headers, "Content-Length": str(len(body))}))
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError) -> None:
    """A whole response that says what went wrong. The connection ends with it where the body may not have been read."""
    unread = {"Connection": "close"} if error.status in (401, 403, 408, 411, 413, 415) else {}
    await send_json(send, error.status, error.body(), {**error.headers, **unread})


def _head(status: int, headers: Mapping[str, str]) -> Message:
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


async def _body(request: Request, service: Service) -> Any:
    """The JSON of a request. ApiError for another type, too many bytes, too slow ones, and what is no JSON."""
    limits = service.limits
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:  # also what a page from elsewhere could have a browser send without asking us
        raise ApiError(f"the Content-Type must be {JSON_TYPE}", status=415, code="unsupported_media_type")
    too_large = ApiError(f"the body has too many bytes; allowed: up to {limits.body_bytes}", status=413, code="body_too_large")
    stated = request.headers.get("content-length", "0")
    if stated.isdigit() and int(stated[:20]) > limits.body_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError as error:
        raise ApiError(f"the body took more than {limits.read_seconds:g} s", status=408, code="timeout") from error
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is no JSON: {error}", code="invalid_json") from error


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns. ClientGone, with the work cancelled, as soon as the client has gone."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.wait((working, watching))
        for task in (working, watching):
            if not task.cancelled():
                task.exception()  # or asyncio warns of an exception that was never retrieved


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
