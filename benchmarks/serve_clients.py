"""Many clients of one server in a process, which serve_load.py starts. Imports the standard library alone, so that it is there
at once and costs the machine little: the clients are not what is timed."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any


async def _clients(url: str, tokens: int) -> dict[str, Any]:
    """The clients of one process, whose prompts are the first line of stdin and which ask after the second."""
    host, _, port = url.rpartition(":")
    prompts = json.loads(sys.stdin.readline())
    connections = [await asyncio.open_connection(host.strip("[]"), int(port)) for _ in prompts]
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    sys.stdin.readline()
    start = time.time()
    asked = zip(connections, prompts, strict=True)
    answers = await asyncio.gather(*(_client(*connection, url, prompt, tokens) for connection, prompt in asked))
    firsts = [first - start for first, _ in answers]
    return {"start": start, "end": time.time(), "tokens": sum(count for _, count in answers), "firsts": firsts}


async def _client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, prompt: list[int], tokens: int
) -> tuple[float, int]:  # fmt: skip
    """When the first token came, seconds since 1970, and how many came."""
    asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps(asked | {"stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    received = await reader.readuntil(b"\r\n\r\n")
    if not received.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{received!r} {await reader.read(1000)!r}")
    received = await reader.read(1 << 16)
    first = time.time()
    end = received
    while b"data: [DONE]" not in end:
        received = await reader.read(1 << 16)
        if not received:
            raise RuntimeError(f"the server left after {end!r}")
        end = end[-2000:] + received
    writer.close()
    (count,) = re.findall(rb'"completion_tokens":(\d+)', end)
    return first, int(count)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_clients(sys.argv[1], int(sys.argv[2])))))
