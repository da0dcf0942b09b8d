"""Dynamo's frontend and workers of ours as processes on loopback, and requests to them. No test."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

STARTED_WITHIN = 120.0
"""Seconds."""


def free_port() -> int:
    """Below 32768: Dynamo 1.6 reads DYN_SYSTEM_PORT into 16 bits with a sign."""
    while True:
        port = random.randrange(15_000, 32_768)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


@dataclass(eq=False)
class Worker:
    """port: of its page of metrics."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def health(self) -> str:
        """What it says of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as answer:
            return str(json.load(answer)["status"])

    def metric(self, name: str, label: str = "") -> float:
        """The sum of what one of its metrics has, over all labels or those with this one; 0 for none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and label in line)

    @property
    def answers(self) -> bool:
        """Whether it makes an answer now."""
        return self.process.poll() is None and self.metric("ptxrun_places_taken") > 0


class Deployment:
    """A frontend that routes by prefixes and moves requests of a worker that dies, and workers, until the block ends. Discovery
    is a folder."""

    def __init__(self, model: Path, kernels: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.port = free_port()
        (folder / "discovery").mkdir()
        self._environment = os.environ | {
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",  # so that who drains is our engine
            "PTXGEN_CACHE_DIR": str(kernels),
            "PTXGEN_BATCH_INVARIANT": "1",
        }
        self.workers: list[Worker] = []
        self.frontend = self._start(
            "frontend", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port), "--discovery-backend",
            "file", "--request-plane", "tcp", "--event-plane", "zmq", "--router-mode", "kv", "--migration-limit", "3",
        )  # fmt: skip

    def start_workers(self, count: int) -> None:
        """At once; returns when requests reach each."""
        for _ in range(count):
            port = free_port()
            name = f"worker{len(self.workers)}"
            words = (str(self.model), "--name", "tiny", "--device", "emulator", "--slots", "4", "--drain-seconds", "20")
            process = self._start(name, "ptxgen_dynamo", *words, DYN_SYSTEM_PORT=str(port))
            self.workers.append(Worker(process, port, self.folder / f"{name}.log"))
        wait_until(self._is_ready, "all workers are asked", STARTED_WITHIN)

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.process.poll() is None]

    def ask(self, path: str = "/v1/completions", **body: Any) -> Any:
        """What a path says, greedily unless asked otherwise. HTTPError for a refusal."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", self._body(body), HEADERS)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def refused(self, **body: Any) -> str:
        """The message of a request that is wrong."""
        with pytest.raises(urllib.error.HTTPError) as refusal:
            self.ask(**body)
        assert refusal.value.code == 400
        return str(json.load(refusal.value)["message"])

    def stream(self, **body: Any) -> Generator[str, None, None]:
        """The texts of a stream as they come. Who closes the iterator leaves."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", "/v1/completions", self._body({**body, "stream": True}), HEADERS)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                event = line.decode().strip().removeprefix("data: ")
                if event and event != "[DONE]" and not event.startswith(":"):
                    said = json.loads(event)
                    assert "choices" in said, said
                    yield "".join(choice["text"] for choice in said["choices"])
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for process in (*(worker.process for worker in self.workers), self.frontend):
            process.kill()
            process.wait()
        if error is not None:
            for path in sorted(self.folder.glob("*.log")):
                sys.stderr.write(f"== {path.name}\n{path.read_text()[-4000:]}\n")

    def _start(self, name: str, module: str, *words: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment | more,
                cwd=self.folder,
            )

    def _is_ready(self) -> bool:
        """Whether each worker has had a request by way of the frontend."""
        assert self.frontend.poll() is None, "the frontend has ended"
        assert len(self.alive()) == len(self.workers), "a worker has ended"
        try:
            self.ask(prompt="a", max_tokens=1)
            return all(worker.metric("ptxrun_answers_total") > 0 for worker in self.workers)
        except OSError:  # nobody listens yet, or no worker is known
            return False

    def _body(self, body: dict[str, Any]) -> bytes:
        return json.dumps({"model": "tiny", "temperature": 0, "ignore_eos": True} | body).encode()


HEADERS = {"Content-Type": "application/json"}
TERM, KILL = signal.SIGTERM, signal.SIGKILL
