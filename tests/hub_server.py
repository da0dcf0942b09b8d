"""A server that plays the Hugging Face hub: it lists repositories, sends files in ranges from another host, breaks off when
told to, and notes what it was asked; and the fixture that has huggingface_hub ask it. No test."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secretOfTheTests"
GATED = (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."})
NO_REPOSITORY = (404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
NO_REVISION = (404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})


@dataclass
class Repository:
    """files: what is sent, by path; states: what is listed instead of the truth, by path; gated: its files need TOKEN."""

    files: dict[str, bytes]
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    gated: bool = False

    def listing(self) -> dict[str, Any]:
        siblings = []
        for path, content in self.files.items():
            lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(
                {"rfilename": path, "size": len(content), "blobId": "0" * 40, "lfs": lfs} | self.states.get(path, {})
            )
        return {"id": "o/r", "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0, "private": False}


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client may go away in the middle."""


class Hub:
    """`url` is the hub, `elsewhere` the host that it redirects to. repositories: by ORG/REPO; breaks: after how many bytes the
    transfers to come break off, one entry each; requests: host (hub or elsewhere), path, and the headers that matter."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.revisions = ["main", COMMIT]
        self.breaks: list[int] = []
        self.ignores_ranges = False
        self.status: int | None = None
        self.requests: list[dict[str, str | None]] = []
        self._hub, self._elsewhere = (_Server(("127.0.0.1", 0), self._handler(name)) for name in ("hub", "elsewhere"))
        self.url = f"http://127.0.0.1:{self._hub.server_port}"
        self.elsewhere = f"http://localhost:{self._elsewhere.server_port}"

    @contextmanager
    def running(self) -> Iterator[Hub]:
        threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in (self._hub, self._elsewhere)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server, thread in zip((self._hub, self._elsewhere), threads, strict=True):
                server.shutdown()
                thread.join()
                server.server_close()

    @property
    def transfers(self) -> list[tuple[str, str | None]]:
        """The files that were sent, in turn, and from where on."""
        return [(str(one["path"]).rpartition("/")[2], one["range"]) for one in self.requests if one["host"] == "elsewhere"]

    def _handler(hub, host: str) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                asked = {"range": self.headers["Range"], "authorization": self.headers["Authorization"]}
                hub.requests.append({"host": host, "path": path, **asked})
                if host == "elsewhere":
                    self.send_file(path)
                elif hub.status is not None:
                    self.answer(hub.status, {}, b"")
                elif path.startswith("/api/models/"):
                    self.send_listing(path.removeprefix("/api/models/"))
                else:
                    self.send_redirect(path)

            def send_listing(self, path: str) -> None:
                name, _, revision = path.partition("/revision/")
                repository = hub.repositories.get(name)
                if repository is None or revision not in ("", *hub.revisions):
                    self.answer(*(NO_REPOSITORY if repository is None else NO_REVISION), b"")
                else:
                    self.answer(200, {"Content-Type": "application/json"}, json.dumps(repository.listing()).encode())

            def send_redirect(self, path: str) -> None:
                name, _, file = path.removeprefix("/").partition(f"/resolve/{COMMIT}/")
                repository = hub.repositories[name]
                if repository.gated and self.headers["Authorization"] != f"Bearer {TOKEN}":
                    self.answer(*GATED, b"")
                else:
                    self.answer(302, {"Location": f"{hub.elsewhere}/{name}/{file}?Signature=of-the-tests"}, b"")

            def send_file(self, path: str) -> None:
                org, repository, file = path.removeprefix("/").split("/", 2)
                content = hub.repositories[f"{org}/{repository}"].files[file]
                given = self.headers["Range"]
                start = 0 if given is None or hub.ignores_ranges else int(given.removeprefix("bytes=").rstrip("-"))
                ranged = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
                end = min(len(content), start + hub.breaks.pop(0)) if hub.breaks else len(content)
                self.answer(206 if start else 200, ranged, content[start:end], len(content) - start)

            def answer(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = length is not None and len(body) < length

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The hub that huggingface_hub asks; it knows no token, and nothing is waited for between tries."""
    from huggingface_hub import constants

    from executor.gguf import hub as fetching

    with Hub().running() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(fetching, "PAUSE", 0.0)
        yield served
