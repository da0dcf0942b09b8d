"""The server's application without a process or a socket: requests are handed to it, and an engine that computes almost nothing
answers. No test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from openai import AsyncOpenAI
from starlette.applications import Starlette

from executor.device.owner import OwnerThread
from executor.gguf.gguf_file import GgufFile
from executor.model.scheduling.scheduler import Scheduler
from executor.serve.access import AccessRules
from executor.serve.app import application
from executor.serve.limits import ServerLimits
from executor.serve.service import Served, Service
from executor.text.chat import chat_ids
from executor.text.tokenizer import Tokenizer
from tests.executor.model.fake_engine import FakeEngine

VOCABULARY = 512
CONTEXT = 256
NAME = "tiny"


@dataclass
class Local:
    """A running application. `client`: OpenAI's, `http`: a plain one; `engine`: what answers."""

    service: Service
    app: Starlette
    engine: FakeEngine
    client: AsyncOpenAI
    http: httpx2.AsyncClient

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """A POST of JSON, in ASCII."""
        return await self.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json", **headers})

    def alone(self, prompt: Sequence[int], count: int) -> str:
        """The text that follows greedily, by the engine without any scheduler."""
        tokens = self.engine.alone(prompt)
        return self.service.served.tokenizer.decode([next(tokens) for _ in range(count)])


@asynccontextmanager
async def running(
    tokenizer: Tokenizer,
    *,
    limits: ServerLimits | None = None,
    keys: Sequence[str] = (),
    engine: FakeEngine | None = None,
    embed: Callable[[Any], Any] | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Local]:
    """An application over an engine, until the block ends."""
    engine = engine or FakeEngine(vocab=VOCABULARY, context=CONTEXT, pages=256, page_len=4, rows=64)
    limits = limits or ServerLimits(running=engine.slots, queue=16)

    def rendered(messages: Any, *, tools: Any = None, variables: Mapping[str, Any], template: str | None = None) -> list[int]:
        extra = dict(variables) | ({} if tools is None else {"tools": list(tools)})
        return chat_ids(tokenizer, messages, template=template, extra=extra)

    owner = OwnerThread("the scheduler")
    scheduler = Scheduler(engine, tokenizer, owner=owner)
    served = Served(NAME, 1, engine.context, "fingerprint", tokenizer, rendered)
    service = Service(served, scheduler, owner, embed or (lambda text: np.full(4, len(text), np.float32)), limits)
    app = application(service, AccessRules(keys, host))
    service.start()
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
            client = AsyncOpenAI(base_url=f"http://{host}/v1", api_key="none", http_client=http, max_retries=0)
            yield Local(service, app, engine, client, http)
    finally:
        assert await asyncio.get_running_loop().run_in_executor(None, service.stop, 10.0)


def run(work: Callable[[Local], Awaitable[None]], tokenizer: Tokenizer, **options: Any) -> None:
    """Run a test's coroutine with a running application."""

    async def main() -> None:
        async with running(tokenizer, **options) as local:
            await asyncio.wait_for(work(local), 60)

    asyncio.run(main())


def tokenizer_of(path: Path) -> Tokenizer:
    """Of a model's file."""
    with GgufFile.open(path) as file:
        return Tokenizer.from_gguf(file)


@dataclass
class Connection:
    """A client of one request, by ASGI's own messages: it may leave. `sent`: what came back so far."""

    path: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._gone = asyncio.Event()
        self._asked = False

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    async def __call__(self, app: Starlette) -> None:
        """Send the request; returns when the application is done with it."""
        pairs = {"host": "127.0.0.1", "content-type": "application/json", **self.headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": self.path, "raw_path": self.path.encode(), "query_string": b"", "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def events(self) -> list[Any]:
        """The events that came, as JSON."""
        data = b"".join(message.get("body", b"") for message in self.sent).decode()
        return [json.loads(event[6:]) for event in data.split("\n\n") if event.startswith("data: {")]
